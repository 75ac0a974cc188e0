"""Which prompts a row says could be computed next, with prefixes in the cache."""

from types import SimpleNamespace
from typing import Any

from vllm.v1.core.sched.balance.rank.reads import (
    in_order,
    max_admitted,
)
from vllm.v1.core.sched.balance.rank.scheduler_writes import keep_prefill_interval

from schedulers import (
    BLOCK_SIZE,
    FULL_ATTENTION,
    WINDOW,
    drafted_by,
    make_request,
    make_scheduler,
    prefills,
    prompt_request,
    rank_config,
    row_of,
    step,
    upstream_copy,
)
from vllm_balance.core.policies.decision import Decision

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3}
HOLD = Decision(admit=False, prefill_budget=0, reason="test")


def config_of(model, **arguments):
    defaults = {"enable_prefix_caching": True, "async_scheduling": False}
    return rank_config(model, **defaults | arguments)


def test_held_requests_that_share_a_prefix_do_not_say_that_it_is_pending(moe_model):
    """With EAGLE 200 requests once said 263,104 tokens instead of 16,000."""
    config = config_of(moe_model, max_num_seqs=64, speculative_config=DRAFTS)
    drafted_by(config, "mtp")
    layers = (WINDOW, FULL_ATTENTION, WINDOW)
    scheduler = make_scheduler(config, num_blocks=2000, layers=layers)
    prefix = [1] * (8 * BLOCK_SIZE)
    scheduler.add_request(prompt_request("first", prefix + [2] * 32, 90))
    while not scheduler.requests["first"].num_output_tokens:
        step(scheduler)
    for number in range(50):
        prompt = prefix + [3 + number] * 24
        scheduler.add_request(prompt_request(f"held-{number}", prompt, 5))
    said = []
    for number in range(30):
        said.append(row_of(scheduler, now=float(number)).pending_tokens)
        scheduler.balance_gate.apply(HOLD)
        step(scheduler)
    # Where hashes look ahead, as from 0.33 on, upstream drops no block.
    assert set(said[12:]) <= {50 * 24, 50 * (24 + BLOCK_SIZE)}


def test_a_remembered_hit_does_not_count_once_tokens_are_computed(moe_model):
    """As when its KV cache was loaded meanwhile: to count it ended the engine."""
    layers = (FULL_ATTENTION, WINDOW)
    scheduler = make_scheduler(config_of(moe_model), num_blocks=17, layers=layers)
    scheduler.add_request(prompt_request("first", [1] * 60, 5))
    step(scheduler)
    again = prompt_request("again", [1] * 60, 5)
    scheduler.add_request(again)
    assert row_of(scheduler).pending_tokens == 12
    manager = scheduler.kv_cache_manager
    assert manager.allocate_slots(again, 0, num_external_computed_tokens=32)
    again.num_computed_tokens = 32
    scheduler.add_request(prompt_request("behind", [2] * 60, 5))
    assert row_of(scheduler).pending_tokens == 28
    assert prefills(upstream_copy(scheduler)) == {"again": 28}


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
    queue = [request.request_id for request in in_order(scheduler)]
    if hasattr(scheduler, "kv_holding_waiting"):  # they come first
        assert queue == ["partly", "loaded", "high", "middle", "low", "last"]
    else:
        assert queue == ["high", "middle", "partly", "loaded", "low", "last"]
    assert not gate.clip(partly, 384, 16)
    loaded.num_computed_tokens = 0  # no blocks were allocated in this test
    assert not step(scheduler).num_scheduled_tokens
    assert [request.request_id for request in in_order(scheduler)] == queue


def test_what_upstream_had_no_room_for_is_pending_once_more_is_free(moe_model):
    """Blocks of windows are not counted, so that it is told by the refusal alone."""
    layers = (FULL_ATTENTION, WINDOW)
    scheduler = make_scheduler(config_of(moe_model), num_blocks=15, layers=layers)
    scheduler.add_request(prompt_request("first", [1] * 50, 20))
    step(scheduler)
    scheduler.add_request(prompt_request("second", [2] * 60, 5))
    told = []
    while not scheduler.requests["second"].num_output_tokens:
        told.append(row_of(scheduler).pending)
        step(scheduler)
    assert told[0] == 1
    assert told[1:-1] == [0] * len(told[1:-1])
    assert told[-1] == 1
    assert len(told) > 9


def test_admission_may_stop_below_the_slots_of_the_model_runner():
    scheduler: Any = SimpleNamespace(max_num_running_reqs=8)
    assert max_admitted(scheduler) == 8
    scheduler.max_num_active_reqs = 5
    assert max_admitted(scheduler) == 5


def test_held_requests_are_no_sign_that_prefills_cannot_keep_up():
    scheduler: Any = SimpleNamespace(prefill_capacity_bound=True)
    keep_prefill_interval(scheduler)
    assert scheduler.prefill_capacity_bound is False
