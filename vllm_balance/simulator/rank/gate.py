# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A rank: its scheduler, and the row that its gate sends.

The code of the real gate determines the pending prompts, and makes the row. While a
rank only decodes, the row is reused, and the engine sets its times.
"""

import math
from itertools import islice

from vllm_balance.core.measure import RowMaker
from vllm_balance.core.pending import NOBODY, Pending, PendingWork, Prompt
from vllm_balance.core.policies import OPEN
from vllm_balance.core.policies.order import ShortFirst
from vllm_balance.core.policies.rows import Row

from ..requests.request import SimRequest
from .kv_cache import Blocks
from .limits import RankLimits, blocks_of
from .request import RankRequest
from .scheduler import Scheduler

_NOTHING = Pending({}, 0)


class GatedRank(Scheduler):
    """One scheduler with its gate."""

    def __init__(
        self,
        limits: RankLimits,
        blocks: Blocks,
        async_scheduling: bool,
        short_first: bool = False,
        ttft: float = 0.0,
    ) -> None:
        """Makes an empty rank; `ttft` is a limit in seconds, 0 for none."""
        self.row: Row | None = None
        """The last row, if the next one differs only in its times."""
        super().__init__(limits, blocks, async_scheduling)
        self._order = ShortFirst() if short_first else None
        self._has_limit = ttft > 0
        self.pending_since = math.inf
        """When the oldest pending request became pending, or infinity."""
        self._work: PendingWork[RankRequest] = PendingWork(self._look_up)
        self._rows = RowMaker(ttft)

    def cached_tokens(self, request: SimRequest) -> int:
        """Tokens of a request that are in the KV cache now."""
        work = RankRequest(request, "", 0.0)
        self._blocks.add(work)
        return self._blocks.lookup(work)[0]

    def end_wave(self) -> None:
        """Ends a wave: forgets the decision, and steps without requests."""
        self.apply(OPEN)
        self._rows.reset()
        self._ended = 0
        self._in_flight.clear()

    def _note_change(self) -> None:
        self.row = None
        super()._note_change()

    def measure(self, wave: int, step: int, now: float, last: float | None) -> Row:
        """The rank's row after a step; the exchange before it ended at `last`."""
        rows = self._rows
        if last is not None:
            rows.end_exchange(last)
        rows.end_step(now, self.prefilled, self.twice_attended // 2)
        waiting, running, partial = self._waiting, len(self._running), self._partial
        rows.is_sorted, pending = True, _NOTHING
        if waiting or partial or self._blocks.is_limited:
            pending = self._read()
        queues = running, running - (partial is not None), len(waiting)
        ended, self._ended = self._ended, 0
        row = rows.row(wave, step, now, queues, ended, pending)
        self.pending_since = rows.pending_since if pending.tokens else math.inf
        # With a full KV cache decodes take blocks, too.
        is_sorted = self._order is None or rows.is_sorted
        if is_sorted and not (self._has_limit or self._blocks.is_limited):
            self.row = row
            if ended or self.prefilled:
                self.row = row._replace(ended=0, prefill_tokens=0, prefill_attended=0)
        return row

    def _read(self) -> Pending:
        """Sorts the queue, and reads the pending prompts."""
        if self._order is not None:
            before = self._rows.pending
            waiting = islice(self._waiting, len(before))
            first = ["" if work.preempted else work.request_id for work in waiting]
            self._order.sort(self._waiting, first, before, self._requests)
        running, partial, free = len(self._running), self._partial, self._blocks.free
        refusal = self._refusal if self._refusal.lasts(free, running) else NOBODY
        return self._work.read(
            () if partial is None else (partial,),
            islice(self._waiting, self._max_running - running),
            free - blocks_of(self._decodes.tokens),
            refusal,
        )

    def _look_up(self, work: RankRequest, before: Prompt | None) -> Prompt:
        tokens, computed = work.num_tokens, work.num_computed_tokens
        needed, used = blocks_of(tokens + self._blocks.ahead), work.num_blocks
        if not computed:
            computed, used = self._blocks.lookup(work)
        return Prompt(tokens, computed, max(0, needed - used))
