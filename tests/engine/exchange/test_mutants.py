"""Faults put into gate, exchange, switch and hooks by hand: each is found."""

import contextlib
import gc
import inspect
import textwrap
from unittest import mock

import pytest
from vllm.v1.core.sched.balance.rank.gate import BalanceGate
from vllm.v1.core.sched.balance.rank.permit import PrefillPermit
from vllm.v1.core.sched.balance.rank.timing import Timing
from vllm.v1.core.sched.balance.rank.watch import RankWatch
from vllm.v1.engine.core import DPEngineCoreProc

from explore import Explorer, Setting, replay
from vllm_balance.core.policies.simple import Cap
from world import controlled

BOUND = "2 ranks, 2 events"

OWNED = BalanceGate, PrefillPermit, Timing, RankWatch, Cap
OWNERS = {each.__name__: each for each in (*OWNED, DPEngineCoreProc)}
# The first three are faults of other engines, which architecture.md names.
TEXT = """\
gather inside schedule() (cap, sync, waves)
    DPEngineCoreProc.run_busy_loop: gate.exchange_for(self) => pass
    BalanceGate.end_pass: self._permit.put_back() => self._permit.put_back(); self._end_step(None, 0, 0, True)
gather before the finish-sync (cap, sync, waves)
    DPEngineCoreProc.run_busy_loop: gate.exchange_for(self) => pass
    DPEngineCoreProc.run_busy_loop: self.engines_running = self._has_global_unfinished_reqs( => local_unfinished_reqs and self.scheduler.balance_gate.exchange_for(self); self.engines_running = self._has_global_unfinished_reqs(
counts of the last wave (cap, sync, waves)
    BalanceGate.reset: self.apply(OPEN) => pass
ranks without requests do not exchange (cap, sync, waves)
    DPEngineCoreProc.run_busy_loop: gate.exchange_for(self) => executed and gate.exchange_for(self)
a resume of ranks that are not paused waits (off, sync, pauses)
    DPEngineCoreProc.resume_scheduler: if not self.is_scheduler_paused() => if False
the end of a wave is not told (cap, sync, waves)
    DPEngineCoreProc.run_busy_loop: gate.exchange_for(self) => self.engines_running and gate.exchange_for(self)
who has no requests takes the wave for ended (cap, sync, waves)
    BalanceGate.exchange_for: active = core.engines_running => active = core.scheduler.requests
rows of another step where requests are (cap, sync, waves)
    BalanceGate.exchange_for: core.step_counter => core.step_counter + core.scheduler.has_requests()
the end of a wave exchanges where requests are left (cap, sync, pauses)
    BalanceGate._end_step: if not active: => if not active and not self._scheduler.requests:
ranks with a step exchange twice (cap, sync, waves)
    DPEngineCoreProc.run_busy_loop: gate.exchange_for(self) => gate.exchange_for(self); executed and gate.exchange_for(self)
paused ranks do not exchange (cap, sync, pauses)
    BalanceGate._end_step: snapshot = self._timing => snapshot = None if self._scheduler.pause_state.value > 0 else self._timing
decided by the own row (cap, sync, waves)
    BalanceGate._end_step: policy.decide(snapshot) => policy.decide(snapshot._replace(running=(len(self._scheduler.running),) * 2))
a hold that never ends (cap, sync, switches)
    Cap.decide: self._held >= self._timeout_steps => False
a hold admits on one rank (align, sync, waves)
    PrefillPermit.holds: not self._allowance.stops_admission => name.endswith('1')
a switch one step early on one rank (cap, sync, switches)
    BalanceGate.request_policy: is_busy = => self.switch.request(ticket); self.switch.follow(self.switch.ticket, 0, 0); is_busy =
a switch to the rank's own ticket (cap, sync, switches)
    BalanceGate._end_step: max(snapshot.ticket) => self.switch.ticket
a switched rank rests by what it has (cap, sync, switches)
    BalanceGate._follow_switch: self.switch.policy is None => self.switch.policy is None and not self._scheduler.has_requests()
a first step without requests is not watched (cap, sync, losses)
    RankWatch._look: self._in_wave() => False
a resized group sends its rows to the ranks that were (cap, sync, resizes)
    BalanceGate.exchange_for: group is not self._timing.group => self._timing.group is None
a row on its way is kept for another group (cap, several hosts, resizes)
    Timing.join: self.reset() => pass
early rows of the wrong step (cap, several hosts, waves)
    BalanceGate.send_for: core.step_counter + 1 => core.step_counter
"""  # noqa: E501
"""What each does, the setting that finds it, then what is replaced by what."""
MUTANTS = {}
changes = []
for line in TEXT.splitlines():
    if line.startswith(" "):
        where, _, change = line.strip().partition(": ")
        owner, name = where.split(".")
        changes.append((OWNERS[owner], name, *change.split(" => ")))
    else:
        name, _, setting = line[:-1].rpartition(" (")
        changes = []
        MUTANTS[name] = setting, changes


@contextlib.contextmanager
def mutated(*changes):
    with contextlib.ExitStack() as stack:
        for owner, name, before, after in changes:
            function = inspect.getattr_static(owner, name)
            code = getattr(function, "source", None) or inspect.getsource(function)
            code = textwrap.dedent(code)
            assert before in code, f"{owner.__qualname__}.{name} has no {before!r}"
            code = code.replace(before, after, 1)
            code = code.replace("super()", f"super({owner.__qualname__}, self)")
            found, code = {}, "from __future__ import annotations\n" + code
            exec(code, function.__globals__, found)
            found[name].source = code  # for another change of the same
            stack.enter_context(mock.patch.object(owner, name, found[name]))
        yield


@pytest.fixture(autouse=True)
def in_control():
    gc.disable()
    with controlled():
        yield
    gc.enable()


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_broken_by_hand_is_found_and_replayed(name):
    setting, changes = MUTANTS[name]
    with mutated(*changes):
        found = Explorer(Setting.of(f"{setting}, {BOUND}")).search()
        print(name, found)
        assert found.fault
        run = f"{found.setting}: {'; '.join(found.run)}"
        assert replay(run).fault == found.fault
    assert not replay(run).fault
