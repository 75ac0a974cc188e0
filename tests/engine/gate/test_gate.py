"""The gate in the real scheduler: what is held, and what is not."""

import inspect
import itertools
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from vllm.v1.core.sched import scheduler as upstream_scheduler
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import SchedulerStats

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
    measure,
    pristine_module,
    step,
    steps_of,
)
from vllm_balance.core.policies import OPEN, Decision
from vllm_balance.core.policies.rows import Limits, Row, Snapshot

HOLD = Decision(admit=False, prefill_budget=None, reason="rank_full")


def close(scheduler):
    scheduler.balance_gate.apply(HOLD)


@settings(max_examples=30)
@given(workload=WORKLOADS, num_blocks=st.sampled_from([18, 30, 100]))
def test_off_schedules_like_the_unpatched_scheduler(moe_model, workload, num_blocks):
    upstream = pristine_module("vllm/v1/core/sched/scheduler.py").Scheduler
    assert "balance_gate" not in inspect.getsource(upstream)
    traces = []
    for scheduler_class in (Scheduler, upstream):
        config = engine_config(moe_model, data_parallel_size=2)
        scheduler = make_scheduler(config, scheduler_class, num_blocks)
        trace = []
        for _ in steps_of(scheduler, workload):
            out = step(scheduler)
            trace.append((out.num_scheduled_tokens, out.preempted_req_ids))
        traces.append(trace)
    assert traces[0] == traces[1]


@pytest.mark.parametrize("scheduler_class", [Scheduler, AsyncScheduler])
def test_a_hold_stops_admission_but_not_what_runs(config, scheduler_class):
    scheduler = make_scheduler(config, scheduler_class)
    scheduler.add_request(make_request("long", 100, 5))
    assert step(scheduler).num_scheduled_tokens == {"long": 64}
    close(scheduler)
    scheduler.add_request(make_request("late", 10, 5))
    assert step(scheduler).num_scheduled_tokens == {"long": 36}, "chunk goes on"
    assert step(scheduler).num_scheduled_tokens == {"long": 1}, "decode goes on"
    assert [r.request_id for r in scheduler.waiting] == ["late"]
    scheduler.balance_gate.apply(OPEN)
    assert step(scheduler).num_scheduled_tokens == {"long": 1, "late": 10}


def test_the_end_of_a_wave_clears_the_state(scheduler):
    scheduler.add_request(make_request("held", 10, 5))
    for number in range(2):
        close(scheduler)
        step(scheduler)
        measure(scheduler.balance_gate, step=number)
    end_step(scheduler.balance_gate, 32, active=False)
    stats = scheduler.balance_gate.take_stats()
    assert stats["held_steps"] == 1, "the one before was in the step's own report"
    assert scheduler.balance_gate.decision == OPEN
    assert step(scheduler).num_scheduled_tokens == {"held": 10}


class Noting(OtherRank):
    """Notes which group was joined, and when the row was sent and received."""

    def __init__(self):
        super().__init__()
        self.told = []

    def join(self, group, *arguments, **options):
        super().join(group, *arguments, **options)
        self.told.append(group)

    def send(self, row):
        super().send(row)
        self.told.append("send")

    def receive(self):
        self.told.append("receive")
        return super().receive()


def test_a_row_that_was_sent_early_is_dropped_with_the_group(scheduler):
    """After a repaired fault: no other rank of the new group knows of that row."""
    exchange = Noting()
    gate = give_gate(scheduler, "cap", exchange, sends_early=True)
    core = SimpleNamespace(
        dp_group="first",
        engines_running=True,
        current_wave=0,
        step_counter=1,
        _send_engine_dead=print,
    )
    scheduler.add_request(make_request("runs", 10, 50))
    for group in ("first", "second"):
        core.dp_group = group
        step(scheduler)
        gate.send_for(core)
        gate.exchange_for(core)
        gate.send_for(core)
        gate.reset()
    once = ["send", "receive", "send"]
    assert exchange.told == ["first", *once, "second", *once]


def test_a_scheduler_starts_no_thread_and_its_step_begins_with_what_runs(config):
    before = {*threading.enumerate()}
    scheduler = make_scheduler(config)
    assert {*threading.enumerate()} <= before
    told = []
    exchange = SimpleNamespace(
        begin_step=lambda: told.append("model"),
        end_wave=lambda *when: told.append(when),
    )
    gate = give_gate(scheduler, "cap", exchange)
    scheduler.schedule()
    assert told == []
    scheduler.add_request(make_request("first", 10, 5))
    scheduler.schedule()
    assert told == ["model"]
    end_step(gate, 32, active=False)
    assert told == ["model", (0, 32)]


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


def test_metrics_carry_the_engine_and_the_reason(config, scheduler):
    logger = PrometheusStatLogger(config, [0, 1])
    gate = scheduler.balance_gate
    full = Row(*[1] * len(Row._fields))._replace(prefill_tokens=5)
    gate.stats.observe_step(
        HOLD, Snapshot.from_rows([full, full], [Limits(4, 64)] * 2), 0.001
    )
    gate.stats.observe_held_step()
    stats = SchedulerStats(dp_balance_stats=gate.take_stats())
    assert not gate.take_stats()["decisions"], "each report is sent once"
    logger.record(stats, None, engine_idx=1)

    def value(name, engine="1", **labels):
        labels |= {"model_name": config.model_config.served_model_name}
        labels |= {"engine": engine}
        return REGISTRY.get_sample_value(f"vllm:dp_balance_{name}", labels)

    assert value("context_tokens") == value("held_requests") == 0
    assert value("held_steps_total") == 1
    assert value("held_steps_total", engine="0") == 0
    assert value("exchange_seconds_count") == value("ratio_sum") == 1
    labels = {"policy": "cap", "decision": "hold", "reason": "rank_full"}
    assert value("decisions_total", **labels) == 1


def set_clock(monkeypatch, monotonic):
    """For the gate alone: the scheduler reads the clock, too."""
    clock = SimpleNamespace(monotonic=monotonic)
    for module in ("gate", "timing"):
        monkeypatch.setattr(f"vllm.v1.core.sched.balance.rank.{module}.time", clock)


def exchanges(scheduler, steps, group=None):
    """So many steps; the first of all knows of a request that could be admitted."""
    gate = scheduler.balance_gate
    for number in range(steps):
        if not scheduler.requests:
            scheduler.add_request(make_request("held", 10, 1))
        else:
            step(scheduler)
        end_step(gate, number, group)


def test_a_new_group_of_ranks_starts_anew(scheduler, monkeypatch):
    """New ranks have nothing to remember, so that nobody may."""
    clock = itertools.count(100)
    set_clock(monkeypatch, lambda: next(clock))
    other = OtherRank(running=4)
    gate = give_gate(scheduler, "cap", other)
    exchanges(scheduler, 1, group="before")
    policy = gate.switch.policy
    exchanges(scheduler, 2, group="before")
    row = other.row
    assert gate.switch.policy is policy
    assert (row.pending_age_us, row.step_time_us) == (6_000_000, 1_000_000)
    exchanges(scheduler, 1, group="after")
    row = other.row
    assert gate.switch.policy is not policy
    assert row.step_time_us == 0, "in this step the group was changed"
    assert row.pending_age_us == 9_000_000, "the bound of a hold holds on"


def test_the_tests_of_upstream_can_be_given_a_gate(moe_model, monkeypatch):
    """As `verify` does for its run with the patches on."""
    made = upstream_scheduler.create_balance_gate
    monkeypatch.setattr(upstream_scheduler, "create_balance_gate", made)
    config = engine_config(moe_model)
    assert make_scheduler(config).balance_gate is None
    exec(SWITCH_ON_TEXT, {})
    scheduler = make_scheduler(config)
    scheduler.add_request(make_request("one", 30, 5))
    close(scheduler)
    assert not step(scheduler).num_scheduled_tokens
    scheduler.balance_gate.apply(OPEN)
    assert step(scheduler).num_scheduled_tokens == {"one": 30}
