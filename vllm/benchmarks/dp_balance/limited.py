# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The fast engine for ranks whose KV cache can fill."""

import sys
from collections import deque
from collections.abc import Sequence

from vllm.v1.core.sched.balance.policy import OPEN, Decision
from vllm.v1.core.sched.balance.rows import Snapshot

from .coordinator import Counts, RankCounts
from .cost import Loads
from .engine import Outcome, RankLimits
from .limited_blocks import Blocks, CachedBlocks
from .limited_rank import LimitedRank
from .workload import SimRequest


class LimitedEngine:
    """All ranks, each an object: preemption is a matter of single requests."""

    def __init__(
        self,
        limits: RankLimits,
        max_model_len: int,
        ttft_budget: float | None = None,
        async_scheduling: bool = False,
        shared_prefixes: bool = False,
    ) -> None:
        """Makes empty ranks.

        Args:
            limits: the limits of each rank.
            max_model_len: the longest request, prompt and output, in tokens.
            ttft_budget: what the gate of a server would be told, in seconds.
            async_scheduling: whether a step is scheduled before the last has ended.
            shared_prefixes: whether prompts share beginnings: then all are cached.

        Raises:
            UsageError: the KV cache cannot hold the longest request.
        """
        limits.check_longest(max_model_len)

        def new_blocks() -> Blocks:
            count = (limits.kv_blocks or sys.maxsize) - 1  # vLLM keeps a null block
            if shared_prefixes:
                return CachedBlocks(count, async_scheduling)
            return Blocks(count)

        self._ranks = [
            LimitedRank(limits, new_blocks(), max_model_len, ttft_budget)
            for _ in range(limits.ranks)
        ]
        self._in_flight: deque[Outcome] = deque()
        """Of the steps that were scheduled and have not ended."""
        # Prompt tokens of the step that ends next, and of those after it.
        self._prefilled: deque[list[int]] = deque(maxlen=1 + async_scheduling)
        self.held = [False] * limits.ranks
        self.end_wave()

    def end_wave(self) -> None:
        """Forgets the decision and the holds."""
        self.decide(OPEN)
        self._last_exchange: float | None = None
        self._prefilled.clear()
        self._in_flight.clear()  # a step without requests at most

    def decide(self, decisions: Decision | Sequence[Decision]) -> None:
        """Sets what every rank, or each rank, may do in the next step."""
        if isinstance(decisions, Decision):
            decisions = (decisions,) * len(self._ranks)
        self._decisions = decisions

    def add(self, rank: int, request: SimRequest) -> None:
        """Hands a request to a rank."""
        request.rank = rank
        self._ranks[rank].add(request)

    def has_work(self) -> bool:
        """Whether any rank has an unfinished request."""
        return any(rank.has_work() for rank in self._ranks)

    def counts(self) -> Counts:
        """What the ranks tell the coordinator."""
        return [RankCounts(*rank.counts()) for rank in self._ranks]

    def backlogs(self) -> Counts:
        """What the ranks tell the coordinator for a dispatch by tokens."""
        return [RankCounts(*rank.backlog()) for rank in self._ranks]

    def schedule(self) -> Loads:
        """Starts a step on every rank."""
        outcome, loads = Outcome([], []), []
        for rank, decision in zip(self._ranks, self._decisions, strict=True):
            load, (first, done) = rank.schedule(decision)
            loads.append(load)
            outcome.first.extend(first)
            outcome.done.extend(done)
        self._in_flight.append(outcome)
        self._prefilled.append([rank.prefilled for rank in self._ranks])
        self.held = [rank.held for rank in self._ranks]
        return Loads(*zip(*loads, strict=True))

    def update(self) -> Outcome:
        """Ends the step that was scheduled first."""
        outcome = self._in_flight.popleft()
        for request in outcome.done:
            self._ranks[request.rank].finish(request)
        return outcome

    def exchange(self, wave: int, step: int, now: float) -> Snapshot:
        """The rows of all ranks, as their gates measure them."""
        since = now if self._last_exchange is None else self._last_exchange
        self._last_exchange = now
        return Snapshot.from_rows(
            rank.measure(wave, step, now, since, prefilled)
            for rank, prefilled in zip(self._ranks, self._prefilled[0], strict=True)
        )
