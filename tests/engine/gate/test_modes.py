"""Adaptive balance in every way to run vLLM, as docs/compatibility.md lists them."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import (
    ExampleConnector,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from hugging_face import NEW_TOKENS
from schedulers import make_request, make_scheduler, measure, rank_config, step
from test_greedy_equality import assert_equal, assert_the_gate_decided
from vllm_balance.core.policies import OPEN, Decision
from vllm_server import Server

BALANCE = ("-dp", "2", "--data-parallel-balance", "adaptive", "--max-num-seqs", "4")
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
NGRAM |= {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
PIPELINE = ("-pp", "2", "--distributed-executor-backend", "mp")
PIPELINE += ("--max-num-batched-tokens", "48")
DRAFTS = ("--speculative-config", json.dumps(NGRAM))


def test_a_pipeline_of_worker_processes(moe_model, moe_samples, tmp_path):
    """With prompts in pieces, and prefixes that are cached the second time."""
    with Server(tmp_path, moe_model, *BALANCE, *PIPELINE, forked=True) as server:
        for _ in range(2):
            assert_equal(server, moe_samples[::2], concurrency=16)
        assert_the_gate_decided(server, 2, holds=False)
    # No longer prompt fits into a step, so it is only run if it is cut.
    log = server.log.read_text()
    assert "Chunked prefill is enabled with max_num_batched_tokens=48" in log


@pytest.mark.slow
@pytest.mark.ci
def test_speculation_grammars_and_priorities(moe_model, moe_samples, tmp_path):
    """Grammars are compiled during holds; urgent requests overtake and preempt."""
    options = "--scheduling-policy priority --max-model-len 320 --block-size 32"
    options = (*options.split(), "--num-gpu-blocks-override", "11", *DRAFTS)
    with (
        Server(tmp_path, moe_model, *BALANCE, *options, forked=True) as server,
        ThreadPoolExecutor(18) as pool,
    ):

        def ask(number):
            regex = {"regex": f"[ab]{{{1 + number % 6}}}c"}
            body = {"prompt": [5 + number, 6, 7], "max_tokens": 8, "temperature": 0}
            answer = server.ask(**body, structured_outputs=regex, ignore_eos=False)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["choices"][0]["text"])

        def complete(priority):
            prompts = [sample.prompt for sample in moe_samples]
            return server.complete(prompts, NEW_TOKENS, 8, priority=priority)

        completions = pool.map(complete, (9, 0))
        for number, text in enumerate(pool.map(ask, range(48))):
            assert re.fullmatch(f"[ab]{{{1 + number % 6}}}c", text), text
        for got in completions:
            assert got == [list(sample.tokens) for sample in moe_samples]
        accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
        drafted = server.metric("vllm:spec_decode_num_draft_tokens_total")
        assert 0 < sum(accepted.values()) < sum(drafted.values())
        assert sum(server.metric("vllm:num_preemptions_total").values()) > 0
        assert_the_gate_decided(server, 2, holds=False)
        refused = server.ask(prompt=[5, 6], temperature=0.5)
        assert refused.status_code == 400
        assert "send temperature=0" in refused.text


class LateConnector(ExampleConnector):
    """Loads the first 32 tokens of every prompt, some steps after it was asked."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return 32 - num_computed_tokens, True

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        """Nothing to load: there is no worker."""


HOLD = Decision(admit=False, prefill_budget=None, reason="test")


def connector_scheduler(model, folder, **options):
    config = rank_config(
        model,
        "adaptive",
        kv_transfer_config={
            "kv_connector": LateConnector.__name__,
            "kv_role": "kv_both",
            "kv_connector_module_path": __name__,
            "kv_connector_extra_config": {"shared_storage_path": str(folder)},
        },
        **options,
    )
    return make_scheduler(config)


def test_a_held_prompt_in_progress_delays_no_load(moe_model, tmp_path):
    """It has a slot already; the other one is for whom the connector is asked."""
    scheduler = connector_scheduler(
        moe_model,
        tmp_path,
        max_num_seqs=2,
        long_prefill_token_threshold=16,
    )
    scheduler.connector.get_num_new_matched_tokens = lambda request, computed: (
        (32 - computed, True) if request.request_id == "remote" else (0, False)
    )
    scheduler.add_request(make_request("in progress", 200, 5))
    step(scheduler)
    gate = scheduler.balance_gate
    gate.apply(HOLD._replace(prefill_budget=0))
    remote = make_request("remote", 60, 5)
    scheduler.add_request(remote)
    scheduler.add_request(make_request("beyond", 60, 5))
    step(scheduler)
    assert remote.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    assert gate._permit.num_held == 2, "the other slot is not taken yet"


def test_a_hold_delays_no_load_but_holds_what_is_left(moe_model, tmp_path):
    """If that is more than a block."""
    scheduler = connector_scheduler(moe_model, tmp_path)
    gate = scheduler.balance_gate
    gate.apply(HOLD)
    requests = [make_request("nearly all", 45, 5), make_request("half", 60, 5)]
    for request in requests:
        scheduler.add_request(request)
    output = scheduler.schedule()
    assert not output.num_scheduled_tokens, "their KV cache has not arrived"
    loading = RequestStatus.WAITING_FOR_REMOTE_KVS
    assert [request.status for request in requests] == [loading] * 2, "loads began"
    row = measure(gate, wave=0, step=1, now=1.0)
    assert (row.running, row.waiting, row.pending) == (0, 2, 0), "in transfer"
    arrived = KVConnectorOutput(finished_recving={"nearly all", "half"})
    empty = ModelRunnerOutput(
        req_ids=[], req_id_to_index={}, kv_connector_output=arrived
    )
    scheduler.update_from_output(output, empty)
    gate.apply(HOLD)
    assert step(scheduler).num_scheduled_tokens == {"nearly all": 45 - 32}
    row = measure(gate, wave=0, step=2, now=2.0)
    assert (row.pending, row.pending_tokens) == (1, 60 - 32)
    gate.apply(OPEN)
    assert step(scheduler).num_scheduled_tokens == {"nearly all": 1, "half": 60 - 32}
