# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A rank: its scheduler, and what its gate measures.

Models `balance/measure`, with its own `ages`. A rank that did not change since its last
row is not measured again: its requests only grow older.
"""

from collections import deque
from itertools import islice

from vllm.v1.core.sched.balance.measure.ages import PendingAges
from vllm.v1.core.sched.balance.policies.attention_cost import twice_attended
from vllm.v1.core.sched.balance.policies.order import ShortFirst
from vllm.v1.core.sched.balance.policies.registry import OPEN
from vllm.v1.core.sched.balance.policies.rows import Row

from ..requests.request import SimRequest
from .kv_cache import Blocks
from .limits import RankLimits, blocks_of
from .request import RankRequest
from .scheduler import Scheduler


class _Ages(PendingAges):
    def oldest_since(self, now: float) -> float:
        """When the oldest became pending, as of the last call of `oldest`."""
        return next(iter(self._since.values()), now)


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
        self._ages = _Ages()
        self._last_changes = -1
        """What `_changes` was at the last row."""
        self._queues = 0, 0, 0, 0, 0
        """Of the row: running, decoding, waiting, pending, pending tokens."""
        self._pending: list[RankRequest] = []
        self._pending_attended = 0
        self._pending_tokens: dict[str, int] = {}
        self._pending_names: frozenset[str] = frozenset()
        self._pending_since = 0.0
        self._last_row: float | None = None
        self._unsorted = False
        """Whether those who are pending are not those that were put in order."""
        # Prompt tokens of the step that ends next, and of those after it.
        self._prefilled: deque[tuple[int, int]] = deque(maxlen=1 + async_scheduling)

    def cached_tokens(self, request: SimRequest) -> int:
        """Tokens of a request that are in the KV cache now."""
        work = RankRequest(request, "", 0.0)
        self._blocks.add(work)
        return self._blocks.cached_tokens(work)

    def end_wave(self) -> None:
        """Forgets the decision, and steps without requests."""
        self.apply(OPEN)
        self._last_row = None
        self._prefilled.clear()
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
        self._prefilled.append((self.prefilled, self.twice_attended // 2))
        # Decodes take blocks, too, and who is pending since is put in order.
        unchanged = self._changes == self._last_changes and not self._unsorted
        if not unchanged or self._blocks.is_limited:
            self._measure_pending(now)
        age = now - self._pending_since if self._pending else 0.0
        prefilled, attended = self._prefilled[0]
        return Row(
            wave,
            step,
            *self._queues,
            prefilled,
            int((now - since) * 1e6),
            self._max_running,
            self._max_tokens,
            int(age * 1e6),
            self._pending_attended,
            attended,
        )

    def _measure_pending(self, now: float) -> None:
        if (order := self._order) is not None:
            pending = self._pending_tokens
            waiting = islice(self._waiting, len(pending))
            first = ["" if work.preempted else work.name for work in waiting]
            order.sort(self._waiting, first, pending, self._requests)
        self._last_changes = self._changes
        self._pending, left, self._pending_attended = self._find_pending()
        running = len(self._running)
        decoding = running - (self._partial is not None)
        queued = running, decoding, len(self._waiting)
        self._queues = *queued, len(self._pending), sum(left)
        named = zip([work.name for work in self._pending], left, strict=True)
        self._pending_tokens = dict(named)
        names = frozenset(self._pending_tokens)
        self._unsorted = self._order is not None and names != self._pending_names
        self._pending_names = names
        self._ages.oldest(names, now)
        self._pending_since = self._ages.oldest_since(now)

    def _find_pending(self) -> tuple[list[RankRequest], list[int], int]:
        """What the gate takes for pending: what fits beside the next decodes.

        Returns:
            The requests, the tokens that each has left to compute, and what these
            attend to.
        """
        slots = self._max_running - len(self._running)
        budget = max(self._max_tokens - self._decodes.tokens, 1)
        room = self._blocks.free
        if self._blocks.is_limited:
            room -= self._decodes.growth(self._step + 1)
        pending, left, twice = [], [], 0
        if (partial := self._partial) is not None:
            computed, total = partial.num_computed_tokens, partial.num_tokens
            part = min(total, computed + budget) + self._blocks.ahead
            if room < blocks_of(part) - partial.num_blocks:
                slots, room = 0, 0
            else:
                pending.append(partial)
                left.append(total - computed)
                twice = twice_attended(computed, left[0])
                room -= max(blocks_of(total), blocks_of(part)) - partial.num_blocks
        elif room < 0:
            slots = 0
        waiting = list(islice(self._waiting, slots))
        needs = self._blocks.needs(waiting, room, budget)
        for work, (need, cached) in zip(waiting, needs, strict=True):
            room -= need
            if room < 0:
                break
            pending.append(work)
            tokens = work.num_tokens - cached
            left.append(tokens)
            twice += twice_attended(cached, tokens)
        return pending, left, twice // 2
