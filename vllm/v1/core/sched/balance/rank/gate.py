# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The scheduler's side of balance scheduling: measure, exchange, hold and clip."""

import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

import torch.distributed as dist
from vllm import envs
from vllm.fixes.orphans import end_with_parent
from vllm.fixes.timeouts import timeout_of
from vllm.logger import init_logger
from vllm.v1.core.sched.balance.options import check_balance_scheduler, only_decodes
from vllm.v1.core.sched.balance.rank.group import (
    Alone,
    RowExchange,
    check_identity,
    identity_of,
    sends_early,
)
from vllm.v1.core.sched.balance.rank.metrics import BalanceStats
from vllm.v1.core.sched.balance.rank.permit import PrefillPermit
from vllm.v1.core.sched.balance.rank.reads import (
    SchedulerReads,
    limits_of,
    load_of,
    num_waiting,
)
from vllm.v1.core.sched.balance.rank.scheduler_writes import (
    keep_prefill_interval,
    offer,
    put_in_order,
)

from vllm_balance.core.measure import Queues, RowMaker
from vllm_balance.core.pending import NOBODY
from vllm_balance.core.policies import (
    OPEN,
    SHORT_FIRST,
    Decision,
    Policy,
    create_policy,
)
from vllm_balance.core.policies.order import ShortFirst
from vllm_balance.core.policies.rows import Row, Snapshot
from vllm_balance.core.policies.wishes import first_wish, wished

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import DPEngineCoreProc, EngineCore

logger = init_logger(__name__)

REST_STEPS = 32
"""While nothing can be held, ranks exchange rows once in so many steps: as often as
upstream's ranks agree whether a wave has ended."""


def create_balance_gate(
    scheduler: "Scheduler", vllm_config: "VllmConfig"
) -> "BalanceGate | None":
    """The scheduler's gate, or None if balance scheduling is off.

    On a decode instance all prompts come with their KV cache, so nothing would be held:
    its gate only reports.
    """
    parallel_config = vllm_config.parallel_config
    name = parallel_config.data_parallel_balance
    if name == "off":
        return None
    size = parallel_config.data_parallel_size
    logger.info(
        "Data parallel balance scheduling is on: policy %s, %s.",
        name,
        f"{size} ranks" if size > 1 else "this rank by itself",
    )
    exchange: RowExchange = Alone(partial(limits_of, scheduler))
    if size > 1:  # upstream says 1 to each rank of a dense model
        exchange = RowExchange(
            timeout_of(parallel_config),
            identity_of(vllm_config),
            parallel_config.data_parallel_rank,
            size,
        )
    if only_decodes(vllm_config):
        name = "off"
    is_fcfs = vllm_config.scheduler_config.policy == "fcfs"
    return BalanceGate(
        scheduler,
        name,
        exchange,
        BalanceStats(name, parallel_config.data_parallel_rank),
        partial(create_policy, in_flight=vllm_config.max_concurrent_batches),
        short_first=SHORT_FIRST if is_fcfs else (),
        sends_early=sends_early(vllm_config),
    )


def start_balance_gate(core: "EngineCore") -> None:
    """Starts what runs beside the engine core's loop, once it has its scheduler.

    Raises:
        ValueError: balance is on, and scheduler or engine would ignore the gate.
        RuntimeError: another rank of the group would decide differently.
    """
    check_balance_scheduler(core.scheduler, core.vllm_config)
    group = getattr(core, "dp_group", None)
    if envs.VLLM_ELASTIC_EP_SCALE_UP_LAUNCH:
        group = None  # the other ranks come to it while they serve
    if hasattr(core, "input_queue"):  # in a process of its own
        end_with_parent()
    if (gate := getattr(core.scheduler, "balance_gate", None)) is not None:
        gate.start(core, group)
    elif group is not None:
        check_identity(group, identity_of(core.vllm_config))


class BalanceGate:
    """Holds the decision that the ranks took together after the last step.

    The engine core calls `exchange` once per step, or `end_step` where the rank waits
    for no other. `Scheduler.schedule` asks the permit for the step, which has `holds`,
    `skip`, `clip` and `clip_running`, and calls `put_back` at the end of its pass.
    """

    def __init__(
        self,
        scheduler: "Scheduler",
        name: str,
        exchange: RowExchange,
        stats: BalanceStats,
        new_policy: Callable[[str], Policy] = create_policy,
        short_first: Collection[str] = (),
        sends_early: bool = False,
    ) -> None:
        """The gate of one rank, which starts with the policy `name`.

        Args:
            scheduler: its scheduler.
            name: a policy, or "off": the gate holds nothing until it is switched.
            exchange: with the other ranks.
            stats: what becomes of it.
            new_policy: makes the policy of a name.
            short_first: with which policies short prompts go first.
            sends_early: whether `send_for` sends a row before its step is computed.
        """
        self.stats = stats
        self._new_policy, self._short_first = new_policy, short_first
        self._policies: dict[str, Policy] = {}
        """Those that this group has had. What they learned of the device stays."""
        self._wish = first_wish(name)
        self._choose(name)
        self._scheduler = scheduler
        self._exchange = exchange
        self._group: dist.ProcessGroup | None = None
        self._sends_early, self._is_sent = sends_early, False
        self._permit = permit = PrefillPermit(scheduler)
        # Upstream's loop calls these once for each prompt.
        self.holds, self.skip = permit.holds, permit.skip
        self.clip, self.clip_running = permit.clip, permit.clip_running
        self.apply = permit.apply
        self._order = ShortFirst()
        self._reads: SchedulerReads | None = None
        self._rows = RowMaker()

    def reset(self) -> None:
        """Forgets the steps so far: the next is scheduled as if balance were off.

        Also a row that was sent early. The end of a wave has received it; else the
        ranks' group was lost, and they meet in another.
        """
        self._is_sent = False
        if self.policy is not None:
            self.policy.reset()
        self._rows.reset()
        self._order = ShortFirst()
        self._permit.refusal = NOBODY
        self._reads = None
        self.apply(OPEN)

    def _choose(self, name: str) -> None:
        """Goes on with another policy, as after the end of a wave."""
        self.name = name
        self.policy: Policy | None = None
        if name != "off":
            if name not in self._policies:
                self._policies[name] = self._new_policy(name)
            self.policy = self._policies[name]
            self.policy.reset()
        self.stats.follow(name)

    # Called by the engine core.

    def start(
        self, core: "DPEngineCoreProc", group: "dist.ProcessGroup | None"
    ) -> None:
        """Shows other processes from now on what this rank does.

        Front-ends can call `balance_policy` of the engine core.
        """
        offer(core, "balance_policy", partial(self.tell_policy, core))
        self._exchange.start(lambda: getattr(core, "engines_running", False))
        if group is not None:
            self._join(group, core._send_engine_dead)

    def _join(self, group: dist.ProcessGroup, tell_clients: Callable[[], None]) -> None:
        # Elastic expert parallelism: new ranks have nothing to remember, so nobody may,
        # or the ranks would decide differently.
        limits = limits_of(self._scheduler)
        self._exchange.join(group, limits, tell_clients, apart=self._sends_early)
        self._group = group
        self._is_sent = False  # a row on its way to ranks that have left
        self._policies.clear()
        self._choose(self.name)
        self._rows.forget_steps()

    def send_for(self, core: "DPEngineCoreProc") -> None:
        """Sends this rank's row for the step that is about to be computed.

        Not in the first of a wave: ranks without requests send theirs behind it, and
        all of that step would count as time in which they do not come.
        """
        # The ranks may have met in another group, and between two waves a step may not
        # come to its end.
        is_first = not (core.engines_running and core.step_counter)
        if self._sends_early and core.dp_group is self._group and not is_first:
            self._send_early(core.current_wave, core.step_counter + 1)

    def _send_early(self, wave: int, step: int) -> None:
        if self._sends_early and not self._rests_after(step):
            self._send(wave, step, time.monotonic())

    def _rests_after(self, step: int) -> bool:
        """Whether no rank sends a row after a step: all know that nothing is held."""
        return self.policy is None and step % REST_STEPS != 1

    def _send(self, wave: int, step: int, now: float) -> None:
        """Sends this rank's row, unless it was sent early."""
        if not self._is_sent:
            self._exchange.send(self._row(wave, step, now))
            self._is_sent = True

    def _receive(self) -> Snapshot:
        self._is_sent = False
        return self._exchange.receive()

    def exchange_for(self, core: "DPEngineCoreProc") -> None:
        """Ends a step of the engine core's busy loop."""
        self.exchange(
            group=core.dp_group,
            wave=core.current_wave,
            step=core.step_counter,
            active=core.engines_running,
            tell_clients=core._send_engine_dead,
        )

    def exchange(
        self,
        group: dist.ProcessGroup,
        wave: int,
        step: int,
        active: bool,
        tell_clients: Callable[[], None],
    ) -> None:
        """Tells the other ranks this rank's state and takes the next decision.

        All ranks know from the same all-reduce whether any is `active`, which is to
        have unfinished requests: at the end of a wave all of them skip the exchange,
        unless rows have been sent already.
        """
        is_new = group is not self._group
        if active and is_new:
            self._join(group, tell_clients)
        rests = self._rests_after(step) and not is_new
        if not (active or is_new or rests) and self._sends_early:
            self._send(wave, step, time.monotonic())  # others may have
            self._receive()
        self._end_step(wave, step, active, rests)
        if self._sends_early and active and not self._scheduler.has_requests():
            self._send_early(wave, step + 1)

    def end_step(self) -> None:
        """Ends a step of a rank alone; in a group, `exchange` does that later."""
        if isinstance(self._exchange, Alone):
            rests = self.policy is None and wished(self._wish) == self.name
            self._end_step(0, 0, self._scheduler.has_unfinished_requests(), rests)

    def _end_step(self, wave: int, step: int, active: bool, rests: bool) -> None:
        now = time.monotonic()
        if self.held:
            keep_prefill_interval(self._scheduler)
        if not active:
            self._exchange.rest(wave, step)
            self.reset()
            return
        if rests:
            self._exchange.skip(wave, step)
            self.apply(OPEN)
            return
        if self.policy is None:
            self._rows.forget_steps()  # the last that was timed is some steps ago
        self._time_step(now)
        self._send(wave, step, now)
        before = time.monotonic()
        snapshot = self._receive()
        # A rank that comes early does not wait for the step, but here for the others.
        after = time.monotonic()
        self._rows.end_exchange(after)
        self._switch(max(snapshot.wish), wave, step)
        policy = self.policy
        self.apply(OPEN if policy is None else policy.decide(snapshot))
        learned = None if policy is None else policy.learned
        self.stats.observe_step(self.decision, snapshot, after - before, learned)

    def _switch(self, wish: int, wave: int, step: int) -> None:
        """Takes the newest wish of all ranks, which all of them do in this step."""
        self._wish = max(self._wish, wish)  # one may have come since the row was sent
        before, name = self.name, wished(wish)
        if name != before:
            self._choose(name)
            logger.info(
                "Data parallel balance: policy %s instead of %s, from step %d of "
                "wave %d on.",
                name,
                before,
                step + 1,
                wave,
            )

    def tell_policy(self, core: "DPEngineCoreProc", wish: int = 0) -> dict[str, object]:
        """Hears of a wish, by which all ranks go from their next exchange on.

        Returns:
            the policy now, the one that is wished for, the newest wish, and whether a
            step comes soon.
        """
        self._wish = max(self._wish, wish)
        return {
            "policy": self.name,
            "wanted": wished(self._wish),
            "wish": self._wish,
            "running": getattr(core, "engines_running", False)
            or self._scheduler.has_unfinished_requests(),
        }

    def measure(self, wave: int, step: int, now: float) -> Row:
        """Ends a step at `now` seconds of a steady clock; returns this rank's row."""
        self._time_step(now)
        return self._row(wave, step, now)

    def _time_step(self, now: float) -> None:
        if self.held:
            self.stats.observe_held_step()
        self._rows.end_step(now, *self._permit.prefilled())

    def _row(self, wave: int, step: int, now: float) -> Row:
        """The state now, and the step that ended last."""
        scheduler, permit, rows = self._scheduler, self._permit, self._rows
        if self.name in self._short_first and not rows.is_sorted:
            put_in_order(scheduler, self._order, rows.pending)
            self._rows.is_sorted = True
        if self._reads is None:  # a scheduler makes its gate before its KV cache
            self._reads = SchedulerReads(scheduler)
        running = scheduler.running
        decoding = [each.request_id for each in running if not each.is_prefill_chunk]
        return rows.row(
            wave,
            step,
            now,
            queues=Queues(len(running), len(decoding), num_waiting(scheduler)),
            ended=rows.count_ended(decoding, scheduler.requests),
            pending=self._reads.pending(permit.refusal, permit.looked_up),
            wish=self._wish,
        )

    @property
    def decision(self) -> Decision:
        """The decision for this step."""
        return self._permit.decision

    @property
    def held(self) -> bool:
        """Whether the gate kept back a request in this step."""
        return self._permit.num_held > 0

    # Called by the scheduler.

    def put_back(self) -> None:
        """Ends the pass through the waiting requests: those held go back."""
        self._permit.put_back()
        if self._scheduler.running:
            self._exchange.begin_step()

    def shutdown(self) -> None:
        """The engine core ends, perhaps of an error that is being handled."""
        self._exchange.close(sys.exc_info()[1])

    def take_stats(self) -> dict[str, object]:
        """For `SchedulerStats`: what happened since the last call and is to be done."""
        load = load_of(self._scheduler) | {"held_requests": self._permit.num_held}
        return self.stats.take(load)
