"""Shared prompts in a KV cache that is full: the modelled ranks do what vLLM does.

Steps and rows are those of real schedulers with real gates. What happened in the cases
is counted where vLLM does it.
"""

import inspect
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from vllm.benchmarks.dp_balance.rank import prefix_hits as modelled_hits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.requests.traces import CountTokens
from vllm.benchmarks.dp_balance.requests.workload import SimRequest
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.balance.measure import prefix_hits
from vllm.v1.core.sched.scheduler import Scheduler

from real_ranks import RealEngine
from test_simulator_identity import LIMITED_POLICIES, assert_same, limited

pytestmark = pytest.mark.skipif(
    "prepend" not in inspect.signature(BlockPool.free_blocks).parameters,
    reason="0.30 and later take blocks of which nothing is cached first",
)

CASES = 4 * len(LIMITED_POLICIES)
CROWDED = (8, 44, 50, 66)
"""In these the gate looks up more requests than it does at a time."""


@dataclass(frozen=True)
class Texts(Workload):
    """Prompts that are the beginning of one of some texts, and nothing else.

    Some are the same. All texts begin with the same chunk, and have equal ones after
    others.
    """

    chunk_size: int = 16

    def requests(
        self, rng: random.Random, count_tokens: CountTokens | None = None
    ) -> list[SimRequest]:
        """Draws the requests."""
        requests = super().requests(rng, count_tokens)
        for request in requests:
            text = rng.randrange(self.num_prefixes)
            request.chunk_size = self.chunk_size
            request.hash_ids = tuple(
                1000 * (text + 1) + chunk if chunk % 3 == 1 else chunk
                for chunk in range(-(-request.prompt_len // self.chunk_size))
            )
        return requests


def sharing(case: int) -> tuple[Scenario, str]:
    """As `limited`, with prompts that share beginnings."""
    scenario, policy = limited(case)
    rng = random.Random(f"sharing {case}")
    slots = rng.choice([4, 8, 16, 40])
    limits = replace(
        scenario.limits,
        max_num_seqs=slots,
        max_num_batched_tokens=max(slots, rng.choice([16, 64, 256, 1024])),
        kv_blocks=rng.choice([40, 60, 90]),
    )
    workload = replace(
        scenario.workload,
        num_prompts=rng.choice([60, 120]),
        input_len=rng.choice(
            ["40", "48", "uniform:10:60", "uniform:1:300", "lognormal:80:1:400"]
        ),
        num_prefixes=rng.choice([1, 3, 8, 20]),
    )
    if case % 2:
        workload = replace(workload, prefix_share=rng.choice([0.3, 0.6, 0.9]))
    else:
        values = {name: getattr(workload, name) for name in workload.__match_args__}
        workload = Texts(**values, chunk_size=rng.choice([7, 16, 16, 24, 64, 512]))
    traffic = rng.choice(
        [
            scenario.traffic,
            ClientTraffic(max_concurrency=3 * slots * limits.ranks),
        ]
    )
    return replace(scenario, limits=limits, workload=workload, traffic=traffic), policy


def crowded(case: int) -> tuple[Scenario, str]:
    """As `sharing`, with more requests that wait than are looked up at a time."""
    scenario, policy = sharing(case)
    limits = replace(
        scenario.limits,
        ranks=2,
        max_num_seqs=50,
        max_num_batched_tokens=64,
        kv_blocks=120,
    )
    workload = replace(
        scenario.workload,
        num_prompts=150,
        input_len="uniform:10:60",
        num_prefixes=8,
        chunk_size=16,
    )
    traffic = ClientTraffic(max_concurrency=150)
    return replace(scenario, limits=limits, workload=workload, traffic=traffic), policy


class Spies:
    """Counts what vLLM's schedulers do."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        evict, touch = BlockPool._maybe_evict_cached_block, BlockPool.touch
        preempt, allocate = Scheduler._preempt_request, KVCacheManager.allocate_slots
        schedule = RealEngine.schedule

        def spy_evict(pool: Any, block: Any) -> bool:
            evicted: bool = evict(pool, block)
            self.seen["evicted"] += evicted
            return evicted

        def spy_touch(pool: Any, blocks: Any) -> None:
            self.seen["hit in use"] += sum(block.ref_cnt > 0 for block in blocks)
            self.seen["revived"] += sum(block.ref_cnt == 0 for block in blocks)
            touch(pool, blocks)

        def spy_preempt(scheduler: Any, *arguments: Any) -> None:
            self.seen["preempted"] += 1
            preempt(scheduler, *arguments)

        def spy_allocate(
            manager: Any, request: Any, tokens: int, hits: int = 0, **more: Any
        ) -> Any:
            hits = more.pop("num_new_computed_tokens", hits)
            blocks = allocate(manager, request, tokens, hits, **more)
            if blocks is not None and hits and request.num_preemptions:
                self.seen["hit again"] += 1
            return blocks

        def spy_schedule(engine: RealEngine) -> Any:
            loads = schedule(engine)
            self.seen["held"] += any(engine.held)
            return loads

        patch.setattr(BlockPool, "_maybe_evict_cached_block", spy_evict)
        patch.setattr(BlockPool, "touch", spy_touch)
        patch.setattr(Scheduler, "_preempt_request", spy_preempt)
        patch.setattr(KVCacheManager, "allocate_slots", spy_allocate)
        patch.setattr(RealEngine, "schedule", spy_schedule)


@cache
def compared(case: int) -> tuple[bool, Counter[str]]:
    """Whether scheduling is asynchronous, and what happened; both engines agree."""
    scenario, policy = sharing(case)
    with pytest.MonkeyPatch.context() as spied, pytest.MonkeyPatch.context() as patch:
        spies = Spies(spied)
        assert_same(scenario, policy, case, patch)
    return scenario.async_scheduling, spies.seen


@pytest.mark.parametrize("case", range(CASES))
def test_same_steps_and_rows(case: int) -> None:
    compared(case)


@pytest.mark.parametrize("case", CROWDED)
def test_same_in_a_crowd(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same(*crowded(case), case, monkeypatch)


def test_the_cases_hold_all_that_can_happen() -> None:
    """All in the same run, in each kind of scheduling."""
    kinds = ("evicted", "hit in use", "revived", "preempted", "hit again", "held")
    complete = {False: 0, True: 0}
    for case in range(CASES):
        asynchronous, seen = compared(case)
        complete[asynchronous] += all(seen[kind] for kind in kinds)
    print(complete)
    assert min(complete.values()) >= 6


def test_the_gate_looks_prompts_up_as_often() -> None:
    for name in ("ALWAYS", "EVERY", "SEARCHES", "AT_A_TIME"):
        assert getattr(modelled_hits, name) == getattr(prefix_hits, name)
