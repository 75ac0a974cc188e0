"""A rank's row, of a real scheduler."""

import time

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from schedulers import (
    OtherRank,
    end_step,
    give_gate,
    make_request,
    make_scheduler,
    rank_config,
    row_of,
    step,
)
from vllm_balance.core.policies import OPEN, Decision

HOLD = Decision(admit=False, prefill_budget=None, reason="rank_full")


def test_all_that_are_held_count_and_none_of_a_pause(scheduler):
    gate = scheduler.balance_gate
    scheduler.add_request(make_request("in progress", 200, 5))
    step(scheduler)
    gate.apply(HOLD._replace(prefill_budget=0))
    scheduler.add_request(make_request("waits", 10, 5))
    step(scheduler)
    assert gate.take_stats()["held_requests"] == 2
    assert row_of(scheduler, now=100.0).pending == 2
    assert row_of(scheduler, now=101.0).pending_age_us == 1_000_000
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    end_step(gate, 32, active=False)
    scheduler.set_pause_state(PauseState.UNPAUSED)
    assert row_of(scheduler, now=700.0).pending_age_us == 0


def test_a_row_tells_the_age_of_the_oldest_that_can_keep_the_limit(moe_model):
    limits = {"data_parallel_balance_ttft_ms": 2000}
    scheduler = make_scheduler(rank_config(moe_model, "adaptive", **limits))
    for name, age in (("late", 9.0), ("in time", 1.0), ("new", 0.0)):
        request = make_request(name, 10, 5)
        request.arrival_time = time.time() - age
        scheduler.add_request(request)
    assert 1.0 <= row_of(scheduler).in_time_age_us / 1e6 < 1.5
    step(scheduler)
    assert row_of(scheduler).in_time_age_us == 0, "nothing is pending"


def test_what_was_held_is_told_in_seconds(scheduler):
    gate = give_gate(scheduler, "cap", OtherRank())
    scheduler.add_request(make_request("held", 10, 5))
    for number in range(1, 4):
        gate.apply(HOLD if number < 3 else OPEN)
        step(scheduler)
        end_step(gate, number)
    assert len(gate.take_stats()["held_seconds"]) == 1
    assert gate.take_stats()["held_seconds"] == []


def test_requests_that_wait_for_something_else_do_not_hide_the_others(config):
    """Else nothing would be pending, and what could run would be held."""
    scheduler = make_scheduler(config)
    for number in range(6):
        scheduler.add_request(make_request(f"grammar-{number}", 10, 5))
    for request in scheduler.waiting:
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    scheduler.add_request(make_request("ready", 20, 5))
    row = row_of(scheduler)
    assert (row.waiting, row.pending, row.pending_tokens) == (7, 1, 20)
