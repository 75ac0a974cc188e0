"""The row says what upstream's scheduler would do next, with prefixes in the cache."""

import random
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import NamedTuple

import pytest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.balance.measure.pending import PendingWork
from vllm.v1.core.sched.balance.measure.queues import InTurn
from vllm.v1.core.sched.balance.policies.decision import OPEN, Decision
from vllm.v1.core.sched.balance.policies.rows import Snapshot
from vllm.v1.request import Request, RequestStatus

from schedulers import (
    BLOCK_SIZE,
    engine_config,
    give_gate,
    make_request,
    make_scheduler,
    step,
    steps_of_any_size,
)

init_none_hash(sha256)
HOLD = Decision(admit=False, prefill_budget=0, reason="test")


def config_of(model, **arguments):
    defaults = {"enable_prefix_caching": True, "async_scheduling": False}
    return engine_config(
        model,
        data_parallel_size=2,
        data_parallel_balance="cap",
        **defaults | arguments,
    )


def prompt_request(name, prompt, output, **arguments):
    """A request whose blocks can be found by the requests after it."""
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
        pooling_params=None,
        block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
        **arguments,
    )


def row_of(scheduler, now=1.0):
    return scheduler.balance_gate.measure(wave=0, step=1, now=now, wall=now)


def upstream_prefills(scheduler):
    """Tokens by request that are started or continued in a step without a gate."""
    decoding = {r.request_id for r in scheduler.running if not r.is_prefill_chunk}
    gate, scheduler.balance_gate = scheduler.balance_gate, None
    scheduled = step(scheduler).num_scheduled_tokens
    scheduler.balance_gate = gate
    return {name: n for name, n in scheduled.items() if name not in decoding}


class SameRows:
    """Instead of the gather: another rank that has nothing to prefill."""

    def begin_step(self):
        """As the exchange."""

    def gather(self, row, group, tell_clients):
        other = row._replace(running=1, decoding=1, pending=0, pending_tokens=0)
        return Snapshot.from_rows([row, other._replace(held_steps=0)])


@pytest.mark.parametrize("policy", ["align", "adaptive"])
def test_a_request_that_shares_its_prefix_is_pending_in_a_full_cache(
    moe_model, policy, monkeypatch
):
    """302 blocks nominally, 197 are free, and two are needed: once it was not pending,
    and `align` took 1001 steps to admit it, `adaptive` 882."""
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    config = config_of(moe_model, max_num_batched_tokens=8192, max_model_len=8192)
    scheduler = make_scheduler(config, num_blocks=301 + 197 + 1)
    prefix = [7] * 4800
    scheduler.add_request(prompt_request("first", [*prefix, 1], 2000))
    step(scheduler)
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == 197
    gate = give_gate(scheduler, policy, SameRows())
    scheduler.add_request(prompt_request("second", prefix + [2] * 32, 5))
    lru = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    row = row_of(scheduler)
    assert (row.pending, row.pending_tokens) == (1, 32)
    queue = pool.free_block_queue.get_all_free_blocks()
    assert lru == [block.block_id for block in queue], "blocks are evicted as before"
    hits = scheduler.kv_cache_manager.prefix_cache_stats
    assert hits.requests == 0, "counted only when the scheduler asks"
    for number in range(80):
        gate.exchange(None, 0, number, active=True, tell_clients=print)
        if "second" in step(scheduler).num_scheduled_tokens:
            return
    pytest.fail("held for 80 steps")


@contextmanager
def nothing_cached(scheduler):
    """What a step computes is not found in that step: the manager's own switch, with
    which connectors delay the caching of what they load."""
    manager = scheduler.kv_cache_manager
    allocate = manager.allocate_slots

    def allocate_slots(*args, **kwargs):
        return allocate(*args, **kwargs | {"delay_cache_blocks": True})

    manager.allocate_slots = allocate_slots
    yield
    del manager.allocate_slots


class Examined(NamedTuple):
    """One state in which the row was compared with a step without a gate."""

    hits: int
    """Tokens of the pending requests that are in the KV cache."""
    exactly: bool
    """Whether requests and tokens were compared, too."""


def add_requests(scheduler, rng, number, hit_rate):
    for index in range(rng.choice([0, 0, 1, 3])):
        length = rng.randint(1, 200)
        shared = int(length * hit_rate)
        prompt = [1] * shared + rng.choices(range(2, 90), k=length - shared)
        scheduler.add_request(
            prompt_request(
                f"{number}-{index}",
                prompt,
                rng.randint(1, 20),
                priority=rng.randint(0, 2),
            )
        )


def hit_tokens(scheduler):
    requests, tokens = PendingWork(scheduler).read({})
    return sum(
        request.num_tokens - request.num_computed_tokens - left
        for request, left in zip(requests, tokens, strict=True)
    )


def compare_60_steps(scheduler, rng, hit_rate, chunked):
    """Random holds and budgets lead to the states; then a step without a gate tells
    what is true of them."""
    for number in range(60):
        add_requests(scheduler, rng, number, hit_rate)
        row = row_of(scheduler, now=float(number))
        kind = rng.choice(["real", "large", "gated", "gated"])
        if kind == "gated":
            budget = rng.choice([0, 0, 5, 40, None])
            decision = Decision(admit=budget != 0, prefill_budget=budget, reason="t")
            scheduler.balance_gate.apply(decision)
            step(scheduler)
            continue
        hits = hit_tokens(scheduler)
        scheduler.balance_gate.apply(OPEN)
        chunks = any(request.is_prefill_chunk for request in scheduler.running)
        large = kind == "large" and chunked and not chunks
        exactly = large and rng.random() < 0.7
        cached = scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block
        before = len(cached)
        with (
            steps_of_any_size(scheduler) if large else nullcontext(),
            nothing_cached(scheduler) if exactly else nullcontext(),
        ):
            done = upstream_prefills(scheduler)
        assert (row.pending > 0) == bool(done), (number, row, done)
        if exactly:
            assert row.pending == len(done), (number, row, done)
            if len(cached) == before:  # the step evicted none of the hits
                assert row.pending_tokens == sum(done.values()), (number, row, done)
        elif large:
            assert row.pending <= len(done), (number, row, done)
        yield Examined(hits, exactly)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("chunked", [True, False])
def test_the_row_says_what_upstream_would_do(moe_model, policy, chunked):
    """Whether anything is pending holds without condition. Which requests and how many
    tokens holds without what a step computes and hits at once: the row counts a prefix
    that two new requests share for both."""
    arguments = {} if chunked else {"max_num_batched_tokens": 256}
    config = config_of(
        moe_model,
        scheduling_policy=policy,
        enable_chunked_prefill=chunked,
        **arguments,
    )
    examined = []
    for seed, num_blocks, hit_rate in product(
        range(4), [18, 24, 40, 100, 400], [0.0, 0.5, 0.9, 0.95]
    ):
        scheduler = make_scheduler(config, num_blocks=num_blocks)
        rng = random.Random(seed)
        examined += compare_60_steps(scheduler, rng, hit_rate, chunked)
    with_hits = [each for each in examined if each.hits]
    assert len(with_hits) > len(examined) / 10
    if chunked:
        assert sum(each.exactly for each in with_hits) > 100


def test_a_held_request_blocks_none_that_is_not_held(moe_model):
    """Neither a promotion nor a loaded request; and the order stays upstream's."""
    config = config_of(moe_model, scheduling_policy="priority", max_num_seqs=3)
    scheduler = make_scheduler(config)
    scheduler.balance_gate.apply(HOLD)
    for name, priority in (("low", 9), ("high", 1), ("middle", 5), ("last", 10)):
        scheduler.add_request(make_request(name, 60, 5, priority=priority))
    loaded = make_request("loaded", 60, 5, priority=7)
    loaded.num_computed_tokens = 48
    partly = make_request("partly", 400, 5, priority=6)
    partly.num_computed_tokens = 16
    scheduler.add_request(loaded)
    scheduler.add_request(partly)
    gate = scheduler.balance_gate
    assert not gate.holds(loaded)
    assert gate.holds(partly), "384 tokens are left to compute"
    queue = [request.request_id for request in InTurn(scheduler)]
    if hasattr(scheduler, "kv_holding_waiting"):  # they come first
        assert queue == ["partly", "loaded", "high", "middle", "low", "last"]
    else:
        assert queue == ["high", "middle", "partly", "loaded", "low", "last"]
    assert not gate.clip(partly, 384, 16)
    loaded.num_computed_tokens = 0  # no blocks were allocated in this test
    assert not step(scheduler).num_scheduled_tokens
    assert [request.request_id for request in InTurn(scheduler)] == queue


def test_steps_without_a_look_at_the_queue_do_not_start_the_count_anew(moe_model):
    scheduler = make_scheduler(config_of(moe_model))
    scheduler.add_request(make_request("held", 60, 5))
    counts = []
    for number in range(6):
        row = row_of(scheduler, now=float(number))
        counts.append(row.held_steps)
        scheduler.balance_gate.apply(HOLD)
        if number != 3:  # in this one the scheduler preempts, or has no tokens left
            step(scheduler)
    assert counts == [0, 1, 2, 3, 3, 4]


def test_the_first_held_step_of_an_arrival_is_a_step_of_its_hold(
    moe_model, monkeypatch
):
    """In the row, the length of the hold and the number of held steps."""
    scheduler = make_scheduler(config_of(moe_model))
    gate = scheduler.balance_gate
    monkeypatch.setattr(gate, "take_stats", lambda: None)  # `step` would take them
    rows = []
    for number, decision in enumerate([OPEN, HOLD, HOLD, HOLD, OPEN, OPEN]):
        rows.append(row_of(scheduler, now=float(number)).held_steps)
        if number == 1:
            scheduler.add_request(prompt_request("arrives in a hold", [1] * 20, 5))
        gate.apply(decision)
        step(scheduler)
    assert rows == [0, 0, 1, 2, 3, 0]
    report = gate.stats.take()
    assert report["held_steps"] == 3
    assert report["hold_lengths"] == [[2, 1, 3]], "one hold of three steps"


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0])
def test_the_ttft_budget_does_not_depend_on_the_clock_of_the_front_end(moe_model, skew):
    scheduler = make_scheduler(config_of(moe_model))
    gate = give_gate(scheduler, "adaptive", ttft_budget=5.0)
    waits = []
    for second in range(6):
        if second == 2:
            request = make_request("new", 60, 5, arrival_time=1000.0 + 1.5 + skew)
            scheduler.add_request(request)
        row = gate.measure(0, second, now=float(second), wall=1000.0 + second)
        waits.append(row.wait_us / 1e6)
        gate.apply(HOLD)
        step(scheduler)
    late = 0.0 if not skew else 1.5  # it could have come as early as the row of 0 s
    assert waits[:2] == [0, 0]
    assert waits[2:5] == [0.5 + late, 1.5 + late, 2.5 + late]


def test_a_request_with_a_token_no_longer_presses_the_ttft_budget(moe_model):
    scheduler = make_scheduler(config_of(moe_model), num_blocks=10)
    gate = give_gate(scheduler, "adaptive", ttft_budget=50.0)
    for name in ("first", "second"):
        scheduler.add_request(prompt_request(name, [ord(name[0])] * 60, 40))
        step(scheduler)
    while not step(scheduler).preempted_req_ids:
        pass
    scheduler.finish_requests("first", RequestStatus.FINISHED_ABORTED)
    gate.measure(0, 0, now=0.0, wall=0.0)
    row = gate.measure(0, 1, now=9.0, wall=9.0)
    assert (row.pending, row.wait_us) == (1, 0)
