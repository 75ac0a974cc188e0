# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The scheduler's side of balance scheduling: measure, exchange, decide and apply."""

import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

import torch.distributed as dist
from vllm.v1.core.sched.balance.rank.group import SelfExchange
from vllm.v1.core.sched.balance.rank.metrics import BalanceStats
from vllm.v1.core.sched.balance.rank.own_rows import OwnRows
from vllm.v1.core.sched.balance.rank.permit import PrefillPermit
from vllm.v1.core.sched.balance.rank.reads import limits_of, load_of
from vllm.v1.core.sched.balance.rank.scheduler_writes import (
    keep_prefill_interval,
    register_utility,
)
from vllm.v1.core.sched.balance.rank.switch import PolicySwitch
from vllm.v1.core.sched.balance.rank.timing import Timing

from vllm_balance.core.pending import NOBODY
from vllm_balance.core.policies import OPEN, Decision, Policy, create_policy

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import DPEngineCoreProc, EngineCore


class BalanceGate:
    """Holds the decision that the ranks took together after the last step.

    The engine core calls `exchange_for` once per step, or `end_step` where the rank
    waits for no other. `Scheduler.schedule` asks the permit for the step, which has
    `holds`, `skip`, `clip` and `clip_running`, and calls `end_pass`.
    """

    def __init__(
        self,
        scheduler: "Scheduler",
        name: str,
        timing: Timing,
        stats: BalanceStats,
        new_policy: Callable[[str], Policy] = create_policy,
        short_first: Collection[str] = (),
        ttft: float = 0.0,
    ) -> None:
        """Starts with the policy `name`; with "off" nothing is held before a switch.

        With the policies in `short_first`, short prompts pass long ones; `ttft` is the
        limit of first tokens in seconds, 0 for none.
        """
        self.stats = stats
        self._scheduler = scheduler
        self._timing, self._exchange = timing, timing.exchange
        self._permit = permit = PrefillPermit(scheduler)
        # Upstream's loop calls these once for each prompt.
        self.holds, self.skip = permit.holds, permit.skip
        self.clip, self.clip_running = permit.clip, permit.clip_running
        self.apply = permit.apply
        self.switch = PolicySwitch(name, new_policy)
        self._rows = OwnRows(scheduler, permit, self.switch, short_first, ttft)
        self._follow_switch()

    def _follow_switch(self) -> None:
        self._timing.set_off(self.switch.policy is None)
        self.stats.set_policy(self.switch.name)

    def reset(self) -> None:
        """Forgets the steps so far: the next is scheduled as if balance were off."""
        self._timing.reset()
        if self.switch.policy is not None:
            self.switch.policy.reset()
        self._rows.reset()
        self._permit.refusal = NOBODY
        self.apply(OPEN)

    # Called by the engine core.

    def start(
        self, core: "DPEngineCoreProc", group: "dist.ProcessGroup | None"
    ) -> None:
        """Shows other processes from now on what this rank does.

        Front-ends can call `balance_policy` of the engine core.
        """
        register_utility(core, "balance_policy", partial(self.request_policy, core))
        self._exchange.start(lambda: getattr(core, "engines_running", False))
        if group is not None:
            self._join(group, core._send_engine_dead)

    def _join(self, group: dist.ProcessGroup, tell_clients: Callable[[], None]) -> None:
        self._timing.join(group, limits_of(self._scheduler), tell_clients)
        self.switch.forget()
        self._follow_switch()
        self._rows.forget_steps()

    def send_for(self, core: "DPEngineCoreProc") -> None:
        """Sends this rank's row for the step that is about to be computed.

        Not in the first of a wave: ranks without requests send theirs behind it, and
        all of that step would count as time in which they do not come.
        """
        if core.engines_running and core.step_counter:
            self._before_step(core.dp_group, core.current_wave, core.step_counter + 1)

    def _before_step(self, group: dist.ProcessGroup, wave: int, step: int) -> None:
        self._timing.before_step(
            group, step, lambda: self._rows.read(wave, step, time.monotonic())
        )

    def exchange_for(self, core: "DPEngineCoreProc") -> None:
        """Ends a step of the engine core's busy loop, with the other ranks.

        All of them know from the same all-reduce whether any has unfinished requests.
        """
        group, wave, step = core.dp_group, core.current_wave, core.step_counter
        active = core.engines_running
        if joins := active and group is not self._timing.group:
            self._join(group, core._send_engine_dead)
        self._end_step(group, wave, step, active)
        if joins:  # the policy forgot for how long prompts have been held
            self.apply(OPEN)
        if active and not self._scheduler.has_requests():
            self._before_step(group, wave, step + 1)

    def end_step(self) -> None:
        """Ends a step of a rank alone; in a group, `exchange_for` does that later."""
        if isinstance(self._exchange, SelfExchange):
            # Nobody waits for its row, so it need not wait to switch.
            self._timing.set_off(self.switch.policy is None and self.switch.is_followed)
            self._end_step(None, 0, 0, self._scheduler.has_unfinished_requests())

    def _end_step(
        self, group: dist.ProcessGroup | None, wave: int, step: int, active: bool
    ) -> None:
        now = time.monotonic()
        make_row = partial(self._rows.read, wave, step, now)
        if self.held:
            keep_prefill_interval(self._scheduler)
        if not active:
            self._timing.end_wave(group, wave, step, make_row)
            self.reset()
            return
        if self.held:
            self.stats.observe_held_step()
        self._rows.end_step(now, *self._permit.prefilled())
        snapshot = self._timing.after_step(wave, step, make_row)
        if snapshot is None:
            self._rows.forget_steps()  # the next row comes some steps later
            self.apply(OPEN)
            return
        # A rank that comes early does not wait for the step, but here for the others.
        after = time.monotonic()
        self.stats.observe_held(self._rows.held)
        self._rows.end_exchange(after)
        if self.switch.follow(max(snapshot.ticket), wave, step):
            self._follow_switch()
        policy = self.switch.policy
        self.apply(OPEN if policy is None else policy.decide(snapshot))
        learned = None if policy is None else policy.learned
        waited_s = after - self._timing.waits_since
        self.stats.observe_step(self.decision, snapshot, waited_s, learned)

    def request_policy(self, core: "EngineCore", ticket: int = 0) -> dict[str, object]:
        """Notes a ticket, which all ranks follow from the next exchange on.

        Returns:
            the policy now, the wanted one, the newest ticket, and whether a
            step comes soon.
        """
        is_busy = self._scheduler.has_unfinished_requests()
        running = getattr(core, "engines_running", False) or is_busy
        return self.switch.request(ticket) | {"running": running}

    @property
    def decision(self) -> Decision:
        return self._permit.decision

    @property
    def held(self) -> bool:
        """Whether the gate kept back a request in this step."""
        return self._permit.num_held > 0

    # Called by the scheduler.

    def end_pass(self) -> None:
        """Ends the pass through the waiting requests: those held go back.

        The watch knows from now on that the rank is in a step, if it has one.
        """
        self._permit.put_back()
        if self._scheduler.running:
            self._exchange.begin_step()

    def shutdown(self) -> None:
        self._exchange.close(sys.exc_info()[1])  # an error, if one is being handled

    def take_stats(self) -> dict[str, object]:
        """For `SchedulerStats`: what happened since the last call and is to be done."""
        load = load_of(self._scheduler) | {"held_requests": self._permit.num_held}
        return self.stats.take(load)
