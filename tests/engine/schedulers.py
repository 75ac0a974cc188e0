"""Real schedulers in this process, without an engine around them."""

import copy
import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st
from vllm import __version__
from vllm.engine.arg_utils import EngineArgs
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.balance.rank.gate import BalanceGate
from vllm.v1.core.sched.balance.rank.group import RowExchange
from vllm.v1.core.sched.balance.rank.metrics import BalanceStats
from vllm.v1.core.sched.balance.rank.timing import Timing
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from vllm_balance.core.policies import create_policy
from vllm_balance.core.policies.rows import Limits, Snapshot

ROOT = Path(__file__).parents[2]
BLOCK_SIZE = 16
"""Tokens in a block of the KV cache."""
init_none_hash(sha256)

FULL_ATTENTION = FullAttentionSpec(
    block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32
)
"""One small layer."""
WINDOW = SlidingWindowSpec(
    block_size=BLOCK_SIZE,
    num_kv_heads=1,
    head_size=8,
    dtype=torch.float32,
    sliding_window=48,
)


def engine_config(model, **arguments):
    defaults: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "block_size": BLOCK_SIZE,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "distributed_executor_backend": "uni",
        "enable_prefix_caching": False,
    }
    return EngineArgs(model=str(model), **defaults | arguments).create_engine_config()


def rank_config(model, policy="cap", **arguments):
    """That of one of two ranks."""
    ranks = {"data_parallel_size": 2, "data_parallel_balance": policy}
    return engine_config(model, **ranks | arguments)


def drafted_by(config, method):
    """Makes n-gram drafts those of a model, which a scheduler does not ask for."""
    assert config.speculative_config is not None
    config.speculative_config.method = method


def make_scheduler(
    config,
    scheduler_class=Scheduler,
    num_blocks=100,
    *,
    log_stats=True,
    layers=(FULL_ATTENTION,),
):
    """One without workers; each layer is a group, one of the blocks is vLLM's own."""
    config.cache_config.num_gpu_blocks = num_blocks
    register_all_kvcache_specs(config)
    groups = [KVCacheGroupSpec([f"layer.{n}"], each) for n, each in enumerate(layers)]
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=log_stats,
    )


def give_gate(scheduler, policy, exchange=None, short_first=False, **parameters):
    """A gate with that policy, exchange and parameters, instead of the scheduler's."""
    gate = BalanceGate(
        scheduler,
        policy,
        Timing(exchange or RowExchange(timeout=1.0)),
        BalanceStats(policy=policy),
        partial(create_policy, parameters=parameters),
        [policy] if short_first else (),
    )
    scheduler.balance_gate = gate
    return gate


class OtherRank:
    """Instead of the exchange: this rank's row, and another with these fields."""

    def __init__(self, **fields):
        self.fields = fields
        self.limits = [Limits(4, 64)] * 2

    def join(self, group, limits, tell_clients, own_connections):
        self.limits = [limits, limits]

    def begin_step(self):
        """This rank has work."""

    def send(self, row):
        self.row = row

    def receive(self):
        rows = [self.row, self.row._replace(**self.fields)]
        return Snapshot.from_rows(rows, self.limits)

    def end_wave(self, wave, step):
        """No rank depends on another."""


def make_request(name, prompt_len, output_len, prompt=None, **arguments):
    """A request of these lengths, whose prompt has equal tokens."""
    return Request(
        request_id=name,
        prompt_token_ids=prompt or [1] * prompt_len,
        sampling_params=SamplingParams(max_tokens=output_len, ignore_eos=True),
        pooling_params=None,
        **arguments,
    )


def prompt_request(name, prompt, output, **arguments):
    """A request whose blocks can be found by the requests after it."""
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    return make_request(
        name, len(prompt), output, prompt, block_hasher=hasher, **arguments
    )


def image(name, offset, length=30):
    position = PlaceholderRange(offset=offset, length=length)
    return MultiModalFeatureSpec(
        data=None, modality="image", identifier=name, mm_position=position
    )


def row_of(scheduler, now=1.0):
    """What the rank would tell the others."""
    return measure(scheduler.balance_gate, now=now)


def measure(gate, wave=0, step=1, now=1.0):
    """Ends a step at `now` seconds; the rank's row, which goes nowhere."""
    if gate.held:
        gate.stats.observe_held_step()
    gate._rows.end_step(now, *gate._permit.prefilled())
    return gate._rows.read(wave, step, now)


def end_step(gate, step, group=None, active=True):
    """Ends a step of the first wave, as the loop of an engine core does."""
    gate.exchange_for(
        SimpleNamespace(
            dp_group=group,
            current_wave=0,
            step_counter=step,
            engines_running=active,
            _send_engine_dead=print,
        )
    )


def step(scheduler):
    """Schedules, answers every complete prompt with one token, and updates."""
    output = scheduler.schedule()
    answer(scheduler, output, complete(scheduler, output))
    return output


WORKLOADS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 150), st.integers(1, 40)),
    min_size=1,
    max_size=20,
)
"""When requests come, and tokens of their prompts and answers."""


def steps_of(scheduler, workload):
    """Before each step until all have ended; the requests that come have come."""
    coming = sorted(workload)
    for now in range(5000):
        while coming and coming[0][0] <= now:
            _, prompt, output = coming.pop(0)
            scheduler.add_request(make_request(str(len(coming)), prompt, output))
        if not coming and not scheduler.has_requests():
            break
        yield
    assert not scheduler.requests


def complete(scheduler, output):
    """A token for each request of a step whose prompt is complete."""
    scheduled = output.num_scheduled_tokens
    chunks = [name for name in scheduled if scheduler.requests[name].is_prefill_chunk]
    return {name: 1 for name in scheduled if name not in chunks}


def answer(scheduler, output, tokens):
    """Gives the scheduler that many tokens for each of these requests of a step."""
    ids = list(output.num_scheduled_tokens)
    return scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={req_id: index for index, req_id in enumerate(ids)},
            sampled_token_ids=[[7] * tokens.get(req_id, 0) for req_id in ids],
        ),
    )


def upstream_copy(scheduler):
    """A copy of the scheduler, with all that it has, and without a gate."""
    names = ("vllm_config", "kv_cache_config", "structured_output_manager")
    shared = [getattr(scheduler, name) for name in names]
    memo: dict[int, Any] = {id(each): each for each in shared}
    memo[id(scheduler.balance_gate)] = None
    deepest = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)  # its free blocks are a chain
    try:
        return copy.deepcopy(scheduler, memo)
    finally:
        sys.setrecursionlimit(deepest)


def prefills(scheduler):
    """Schedules; the tokens of requests that were started or continued."""
    decoding = {r.request_id for r in scheduler.running if not r.is_prefill_chunk}
    scheduled = scheduler.schedule().num_scheduled_tokens
    return {name: n for name, n in scheduled.items() if name not in decoding}


def pristine_module(path):
    """A module of the unpatched upstream, whose imports go to the installed vllm."""
    (source,) = ROOT.glob(f"build/pristine/vllm-{__version__}/{path}")
    name = "pristine_" + Path(path).stem
    spec: Any = importlib.util.spec_from_file_location(name, source)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
