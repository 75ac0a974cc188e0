# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A rank: its scheduler, and what its gate tells the others.

What is pending, and since when, says the code of the real gate. A rank that did not
change since its last row is not read again: its requests only grow older.
"""

from itertools import islice

from vllm.v1.core.sched.balance.core.pending import (
    NOBODY,
    PendingAges,
    PendingWork,
    Prompt,
)
from vllm.v1.core.sched.balance.core.policies import OPEN
from vllm.v1.core.sched.balance.core.policies.order import ShortFirst
from vllm.v1.core.sched.balance.core.policies.rows import Row

from ..requests.request import SimRequest
from .kv_cache import Blocks
from .limits import RankLimits, blocks_of
from .request import RankRequest
from .scheduler import Scheduler


class GatedRank(Scheduler):
    """One scheduler with its gate."""

    def __init__(
        self,
        limits: RankLimits,
        blocks: Blocks,
        async_scheduling: bool,
        short_first: bool = False,
    ) -> None:
        """Makes an empty rank.

        Args:
            limits: its limits.
            blocks: of its KV cache.
            async_scheduling: whether a step is scheduled before the last has ended.
            short_first: whether short prompts may pass long ones.
        """
        super().__init__(limits, blocks, async_scheduling)
        self._order = ShortFirst() if short_first else None
        self._work: PendingWork[RankRequest] = PendingWork(self._look_up)
        self._ages = PendingAges()
        self._last_changes = -1
        """What `_changes` was at the last row."""
        self._queues = 0, 0, 0
        """Of the row: running, decoding, waiting."""
        self._pending: dict[str, int] = {}
        self._pending_tokens = self._pending_attended = 0
        self._pending_since = 0.0
        self._last_row: float | None = None
        self._unsorted = False
        """Whether those who are pending are not those that were put in order."""

    def cached_tokens(self, request: SimRequest) -> int:
        """Tokens of a request that are in the KV cache now."""
        work = RankRequest(request, "", 0.0)
        self._blocks.add(work)
        return self._blocks.found(work)[0]

    def end_wave(self) -> None:
        """Forgets the decision, and steps without requests."""
        self.apply(OPEN)
        self._last_row, self._ended = None, 0
        self._in_flight.clear()

    def measure(self, wave: int, step: int, now: float) -> Row:
        """The rank's row after the step.

        Args:
            wave: number of the wave.
            step: number of the step that has ended in the wave.
            now: virtual seconds.
        """
        since = now if self._last_row is None else self._last_row
        self._last_row = now
        # Decodes take blocks, too, and who is pending since is put in order.
        unchanged = self._changes == self._last_changes and not self._unsorted
        if not unchanged or self._blocks.is_limited:
            self._find_pending(now)
        age = now - self._pending_since if self._pending else 0.0
        running, decoding, waiting = self._queues
        ended, self._ended = self._ended, 0
        return Row(
            wave=wave,
            step=step,
            running=running,
            decoding=decoding,
            ended=ended,
            waiting=waiting,
            pending=len(self._pending),
            pending_tokens=self._pending_tokens,
            prefill_tokens=self.prefilled,
            step_time_us=int((now - since) * 1e6),
            pending_age_us=int(age * 1e6),
            pending_attended=self._pending_attended,
            prefill_attended=self.twice_attended // 2,
        )

    def _find_pending(self, now: float) -> None:
        before = self._pending
        if self._order is not None:
            waiting = islice(self._waiting, len(before))
            first = ["" if work.preempted else work.request_id for work in waiting]
            self._order.sort(self._waiting, first, before, self._requests)
        self._last_changes = self._changes
        running, partial = len(self._running), self._partial
        self._queues = running, running - (partial is not None), len(self._waiting)
        free = self._blocks.free
        refusal = self._refusal if self._refusal.lasts(free, running) else NOBODY
        self._pending, self._pending_attended = self._work.read(
            () if partial is None else (partial,),
            islice(self._waiting, self._max_running - running),
            free - blocks_of(self._decodes.tokens),
            refusal,
        )
        self._pending_tokens = sum(self._pending.values())
        changed = before.keys() != self._pending.keys()
        self._unsorted = self._order is not None and changed
        self._pending_since = self._ages.oldest_since(self._pending, now)

    def _look_up(self, work: RankRequest, before: Prompt | None) -> Prompt:
        tokens, computed = work.num_tokens, work.num_computed_tokens
        whole, used = blocks_of(tokens + self._blocks.ahead), work.num_blocks
        if not computed:
            computed, used = self._blocks.found(work)
        return Prompt(tokens, computed, max(0, whole - used))
