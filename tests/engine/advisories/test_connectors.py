"""What vllm-ascend's KV connectors do with a request whose prompt is computed here.

Their own schedulers' methods, from the vendored tree. What they import of devices and
of transfer engines is replaced; these methods use none of it.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from vllm.exceptions import VLLMValidationError
from vllm.fixes.request_checks import check_prompt_logprobs, computes_its_prompt
from vllm.sampling_params import SamplingParams

PLUGIN = Path(__file__).resolve().parents[3] / "vllm_ascend"
PACKAGE = "vllm_ascend.distributed.kv_transfer"
FETCHING = {
    "kv_p2p.mooncake_connector": "MooncakeConnectorScheduler",
    "kv_p2p.mooncake_hybrid_connector": "MooncakeConnectorScheduler",
    "kv_p2p.mooncake_layerwise_connector": "MooncakeLayerwiseConnectorScheduler",
}
FETCHED = {"do_remote_prefill": True}


class Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds all modules of devices, and those of the plugin beside its connectors."""

    def find_spec(self, name, path, target=None):
        if name.startswith(f"{PACKAGE}."):
            return None  # the plugin's own
        first, *rest = name.split(".")
        if first not in ("torch_npu", "mooncake", "vllm_ascend"):
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        if f"{PACKAGE}.".startswith(f"{name}."):  # without what its __init__ does
            spec.submodule_search_locations = [str(PLUGIN.joinpath(*rest))]
        return spec

    def create_module(self, spec):
        if spec.submodule_search_locations:
            return None
        module = MagicMock(name=spec.name)
        module.__spec__ = spec
        module.__path__ = []
        return module

    def exec_module(self, module):
        """There is nothing to run."""


@pytest.fixture
def scheduler_of(monkeypatch):
    """Makes a connector's scheduler without its `__init__`, with these attributes."""
    before = set(sys.modules)
    finder = Replaced()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.setattr(torch, "npu", MagicMock(), raising=False)

    def make(module, name, **attributes):
        found = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
        scheduler = found.__new__(found)
        vars(scheduler).update(attributes)
        return scheduler

    yield make
    for name in {*sys.modules} - before:
        if name.partition(".")[0] in ("torch_npu", "mooncake", "vllm_ascend"):
            del sys.modules[name]


def params(transfer=None, **sampling):
    extra = {"kv_transfer_params": transfer} if transfer is not None else None
    return SamplingParams(extra_args=extra, **sampling)


def config(role):
    transfer = SimpleNamespace(kv_role=role) if role else None
    return SimpleNamespace(kv_transfer_config=transfer)


def request(tokens=256, transfer=None, **more):
    return SimpleNamespace(
        request_id="computed",
        kv_transfer_params=transfer,
        prompt_token_ids=[*range(tokens)],
        num_tokens=tokens,
        num_computed_tokens=0,
        skip_reading_prefix_cache=True,
        block_hashes=[b""] * 4,
        **more,
    )


@pytest.mark.parametrize(
    ("role", "transfer"),
    [
        ("kv_consumer", None),
        ("kv_consumer", FETCHED),
        ("kv_both", FETCHED),
        ("kv_producer", FETCHED),
    ],
)
def test_prompt_logprobs_are_refused_where_the_prompt_comes_from_elsewhere(
    role, transfer
):
    with pytest.raises(VLLMValidationError, match="computed here"):
        check_prompt_logprobs(config(role), params(transfer, prompt_logprobs=0))
    check_prompt_logprobs(config(role), params(transfer, logprobs=1))


@pytest.mark.parametrize("transfer", [None, {}, {"do_remote_decode": True}, "odd"])
@pytest.mark.parametrize("role", [None, "kv_both", "kv_producer"])
def test_prompt_logprobs_are_served_where_it_is_computed(role, transfer):
    check_prompt_logprobs(config(role), params(transfer, prompt_logprobs=0))


@pytest.mark.parametrize(("module", "name"), FETCHING.items())
def test_connectors_that_fetch_find_something_only_for_what_is_refused(
    module, name, scheduler_of
):
    scheduler = scheduler_of(module, name, block_size=[64], need_truncate=False)
    for count in (
        "_state_prefill_token_count",
        "_hybrid_prefill_token_count",
        "_truncate_request_for_hybrid_prefill",
    ):
        setattr(scheduler, count, lambda tokens: tokens)
    for transfer in (None, {}, {"do_remote_decode": True}):
        assert scheduler.get_num_new_matched_tokens(request(), 0) == (0, False)
        check_prompt_logprobs(config("kv_both"), params(transfer, prompt_logprobs=0))
    found = scheduler.get_num_new_matched_tokens(request(transfer=dict(FETCHED)), 0)
    assert found == (256, True)


def test_a_store_does_not_load_what_is_computed(scheduler_of):
    store = scheduler_of(
        "kv_pool.ascend_store.pool_scheduler",
        "KVPoolScheduler",
        kv_role="kv_both",
        retention_interval=None,
        use_gva_layerwise=False,
        use_layerwise=False,
        load_async=True,
        _discard_partial_chunks=False,
        cache_transfer_granularity=64,
        kv_cache_group_ids=[0],
        client=SimpleNamespace(lookup=lambda *_, **__: 128),
        load_specs={},
        _loading_req_ids=set(),
        _unfinished_requests={},
        _unfinished_request_ids=set(),
    )
    computed, usual = request(), request()
    usual.request_id, usual.skip_reading_prefix_cache = "usual", False
    blocks = SimpleNamespace(get_block_ids=lambda: ([1, 2],))
    computes_its_prompt(store)
    for each, found in ((computed, (0, False)), (usual, (128, True))):
        assert store.get_num_new_matched_tokens(each, 0) == found
        store.update_state_after_alloc(each, blocks, found[0])
    assert not store.load_specs["computed"].can_load
    assert store.load_specs["usual"].can_load
    assert store._loading_req_ids == {"usual"}


def test_what_a_preempted_request_had_is_kept_until_it_ends(scheduler_of):
    state = SimpleNamespace(ready=True, num_computed_tokens=128, load_start_tokens=0)
    offload = scheduler_of(
        "kv_pool.recompute_cpu_offload.manager",
        "RecomputeCPUOffloadScheduler",
        _preempted_req_states={"computed": state},
    )
    computes_its_prompt(offload)
    assert offload.get_num_new_matched_tokens(request(), 0) == (0, False)
    offload.update_state_after_alloc(request(), types.SimpleNamespace(), 0)
    assert offload._preempted_req_states == {"computed": state}
