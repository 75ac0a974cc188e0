"""The gate in the real scheduler: what is held, and what is not."""

import inspect
import itertools
import threading
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched import scheduler as upstream_scheduler
from vllm.v1.core.sched.scheduler import Scheduler

from balance_tools.verify.upstream_tests import SWITCH_ON_TEXT
from schedulers import (
    WORKLOADS,
    OtherRank,
    answer,
    complete,
    end_step,
    engine_config,
    give_gate,
    make_request,
    make_scheduler,
    pristine_module,
    step,
    steps_of,
)
from vllm_balance.core.policies import OPEN, Decision

HOLD = Decision(admit=False, prefill_budget=None, reason="rank_full")


@settings(max_examples=15)
@given(workload=WORKLOADS, num_blocks=st.sampled_from([18, 30, 100]))
def test_off_schedules_like_the_unpatched_scheduler(moe_model, workload, num_blocks):
    upstream = pristine_module("vllm/v1/core/sched/scheduler.py").Scheduler
    assert "balance_gate" not in inspect.getsource(upstream)
    config, traces = engine_config(moe_model, data_parallel_size=2), []
    for scheduler_class in (Scheduler, upstream):
        scheduler = make_scheduler(config, scheduler_class, num_blocks)
        trace = []
        for _ in steps_of(scheduler, workload):
            out = step(scheduler)
            trace.append((out.num_scheduled_tokens, out.preempted_req_ids))
        traces.append(trace)
    assert traces[0] == traces[1]


def test_a_hold_stops_admission_but_not_what_runs(scheduler):
    scheduler.add_request(make_request("long", 100, 5))
    assert step(scheduler).num_scheduled_tokens == {"long": 64}
    scheduler.balance_gate.apply(HOLD)
    scheduler.add_request(make_request("late", 10, 5))
    assert step(scheduler).num_scheduled_tokens == {"long": 36}, "chunk goes on"
    assert step(scheduler).num_scheduled_tokens == {"long": 1}, "decode goes on"
    assert [r.request_id for r in scheduler.waiting] == ["late"]
    scheduler.balance_gate.apply(OPEN)
    assert step(scheduler).num_scheduled_tokens == {"long": 1, "late": 10}


def test_on_one_host_a_scheduler_starts_no_thread_and_sends_no_row_early(config):
    before = {*threading.enumerate()}
    assert not make_scheduler(config).balance_gate._timing._sends_early
    assert {*threading.enumerate()} <= before


def test_the_watch_knows_that_a_step_with_requests_begins(config):
    scheduler, told = make_scheduler(config), []
    exchange = SimpleNamespace(begin_step=lambda: told.append(True))
    give_gate(scheduler, "cap", exchange)
    scheduler.schedule()
    assert not told
    scheduler.add_request(make_request("first", 10, 5))
    scheduler.schedule()
    assert told


def test_the_report_of_a_step_tells_what_is_left_to_do(config):
    """As it is after the step, for routers that look at the rank's metrics."""
    scheduler = make_scheduler(config)
    gate = scheduler.balance_gate
    for name, prompt in (("begun", 100), ("held", 30), ("held, too", 10)):
        scheduler.add_request(make_request(name, prompt, 5))
    loads = []
    for decision in (OPEN, HOLD, HOLD, OPEN):
        gate.apply(decision)
        output = scheduler.schedule()
        answers = answer(scheduler, output, complete(scheduler, output))
        report = answers[0].scheduler_stats.dp_balance_stats
        names = ("unprefilled_tokens", "context_tokens", "held_requests")
        loads.append(tuple(report[name] for name in names))
    assert loads == [
        (36 + 30 + 10, 100 + 30 + 10, 0),
        (30 + 10, 101 + 30 + 10, 2),
        (30 + 10, 102 + 30 + 10, 2),
        (0, 103 + 31 + 11, 0),
    ]


def test_a_new_group_of_ranks_starts_anew(scheduler, monkeypatch):
    """New ranks have nothing to remember, so that nobody may."""
    clock = SimpleNamespace(monotonic=itertools.count(100).__next__)
    for module in ("gate", "timing"):  # the scheduler reads it, too
        monkeypatch.setattr(f"vllm.v1.core.sched.balance.rank.{module}.time", clock)
    other, told = OtherRank(running=4), []
    gate = give_gate(scheduler, "cap", other)
    end_step(gate, 0, "before")
    scheduler.add_request(make_request("held", 10, 1))
    for number, group in enumerate(("before", "before", "before", "after"), 1):
        if number > 1:
            step(scheduler)
        end_step(gate, number, group)
        row = other.row
        told.append((gate.switch.policy, row.pending_age_us, row.step_time_us))
    (policy, *_), _, last, (anew, *times) = told
    assert last == (policy, 6_000_000, 1_000_000)
    assert anew is not policy
    assert times == [9_000_000, 0], "the bound of a hold holds on"
    assert gate.decision == OPEN, "in this step the group was changed"


def test_the_tests_of_upstream_can_be_given_a_gate(moe_model, monkeypatch):
    """As `verify` does for its run with the patches on."""
    made = upstream_scheduler.create_balance_gate
    monkeypatch.setattr(upstream_scheduler, "create_balance_gate", made)
    config = engine_config(moe_model)
    assert make_scheduler(config).balance_gate is None
    exec(SWITCH_ON_TEXT, {})
    scheduler = make_scheduler(config)
    scheduler.add_request(make_request("one", 30, 5))
    scheduler.balance_gate.apply(HOLD)
    assert not step(scheduler).num_scheduled_tokens
    scheduler.balance_gate.apply(OPEN)
    assert step(scheduler).num_scheduled_tokens == {"one": 30}
