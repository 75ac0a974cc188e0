# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Makes a rank's row of what its scheduler and its last pass say."""

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from vllm.v1.core.sched.balance.rank.permit import PrefillPermit
from vllm.v1.core.sched.balance.rank.reads import SchedulerReads, num_waiting
from vllm.v1.core.sched.balance.rank.scheduler_writes import put_in_order
from vllm.v1.core.sched.balance.rank.switch import PolicySwitch

from vllm_balance.core.measure import RowMaker
from vllm_balance.core.policies.order import ShortFirst
from vllm_balance.core.policies.rows import Row

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


class OwnRows(RowMaker):
    """Makes the rows of one rank, and remembers what a row says about the last one."""

    def __init__(
        self,
        scheduler: "Scheduler",
        permit: PrefillPermit,
        switch: PolicySwitch,
        short_first: Collection[str],
        ttft: float = 0.0,
    ) -> None:
        """Reads nothing yet: a scheduler makes its gate before its KV cache."""
        super().__init__(ttft)
        self._scheduler, self._permit = scheduler, permit
        self._switch, self._short_first = switch, short_first

    def reset(self) -> None:
        """Begins a wave, in which nothing has been put in order yet."""
        super().reset()
        self._order = ShortFirst()
        self._reads: SchedulerReads | None = None

    def read(self, wave: int, step: int, now: float) -> Row:
        """The state `now` (seconds of `time.monotonic`), and what the last step did."""
        scheduler, permit = self._scheduler, self._permit
        if self._switch.name in self._short_first and not self.is_sorted:
            put_in_order(scheduler, self._order, self.pending)
            self.is_sorted = True
        if self._reads is None:
            self._reads = SchedulerReads(scheduler)
        running = scheduler.running
        decoding = [each.request_id for each in running if not each.is_prefill_chunk]
        return self.row(
            wave,
            step,
            now,
            queues=(len(running), len(decoding), num_waiting(scheduler)),
            ended=self.count_ended(decoding, scheduler.requests),
            pending=self._reads.pending(permit.refusal, permit.looked_up),
            ticket=self._switch.ticket,
            clock=time.time(),
        )
