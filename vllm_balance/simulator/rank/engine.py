# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The engine: all ranks together."""

from collections.abc import Sequence

from vllm_balance.core.policies import Decision
from vllm_balance.core.policies.rows import Limits, Row, Snapshot

from ..requests.request import SimRequest
from ..step_time.model import Loads
from .counts import Counts
from .gate import GatedRank
from .kv_cache import Blocks, CachedBlocks, ReceivedBlocks
from .limits import RankLimits
from .scheduler import NOTHING, Outcome

_STEP, _TIME, _AGE = map(
    Snapshot._fields.index, ("step", "step_time_us", "pending_age_us")
)


class Engine:
    """One scheduler with its gate for each rank.

    One step is `schedule`, `update`, then `exchange` and `decide`, or `end_wave`; that
    is the order of vLLM's busy loop.
    """

    def __init__(
        self,
        limits: RankLimits,
        max_model_len: int,
        async_scheduling: bool = False,
        shared_prefixes: bool = False,
        short_first: bool = False,
        received: bool = False,
        ttft: float = 0.0,
    ) -> None:
        """Makes empty ranks.

        Args:
            limits: the limits of each rank.
            max_model_len: the longest request, prompt and output, in tokens.
            async_scheduling: whether a step is scheduled before the last has ended.
            shared_prefixes: whether prompts share beginnings: then all are cached.
            short_first: whether short prompts may pass long ones in a rank.
            received: whether prompts come with their KV cache.
            ttft: limit of first tokens in seconds; 0 is none.

        Raises:
            UsageError: the KV cache cannot hold the longest request.
        """
        limits.check_longest(max_model_len)
        rank_limits = Limits(limits.max_num_seqs, limits.max_num_batched_tokens)
        self._limits = [(limit,) * limits.ranks for limit in rank_limits]
        """The limits as columns of a snapshot."""

        def blocks() -> Blocks:
            if received:
                return ReceivedBlocks(limits)
            if shared_prefixes:
                return CachedBlocks(limits)
            return Blocks(limits)

        self._ranks = [
            GatedRank(limits, blocks(), async_scheduling, short_first, ttft)
            for _ in range(limits.ranks)
        ]
        self._now: float | None = None
        """When rows were last exchanged in the wave."""
        self._rows: list[Row] = []
        self._columns: list[tuple[int, ...]] = []
        """The columns of the last snapshot."""

    @property
    def held(self) -> Sequence[bool]:
        """Per rank: whether an admissible request was held back in the step."""
        return [rank.held for rank in self._ranks]

    def add(self, rank: int, request: SimRequest) -> None:
        """Adds a request to a rank."""
        request.rank = rank
        self._ranks[rank].add(request)

    def cached_tokens(self, rank: int, request: SimRequest) -> int:
        """Tokens of a request that a rank has in its KV cache now."""
        return self._ranks[rank].cached_tokens(request)

    def has_work(self) -> bool:
        """Whether any rank has an unfinished request."""
        return any(rank.has_work() for rank in self._ranks)

    def counts(self) -> Counts:
        """The counts that the ranks report to the coordinator."""
        return [rank.counts() for rank in self._ranks]

    def output_tokens(self, request: SimRequest) -> int:
        """Tokens of an unfinished request's answer so far."""
        return self._ranks[request.rank].output_tokens(request)

    def calm_steps(self) -> float:
        """How many steps, from the next on, do nothing but decode."""
        until = min([rank.calm_until for rank in self._ranks])
        return until - self._ranks[0].step - 1

    def skip(self, steps: int) -> Loads:
        """Takes calm steps at once; returns the load of another calm step."""
        decodes, context = zip(*[rank.skip(steps) for rank in self._ranks], strict=True)
        return Loads((0,) * len(decodes), decodes, context)

    def schedule(self) -> Loads:
        """Starts a step on every rank."""
        return Loads(*zip(*[rank.schedule() for rank in self._ranks], strict=True))

    def update(self) -> Outcome:
        """Ends the oldest scheduled step."""
        first, done, wasted = Outcome([], [])
        for rank in self._ranks:
            outcome = rank.update()
            if outcome is not NOTHING:
                first.extend(outcome.first)
                done.extend(outcome.done)
                wasted += outcome.wasted
        return Outcome(first, done, wasted)

    def exchange(self, wave: int, step: int, now: float) -> Snapshot:
        """The rows of all ranks after a step, from 1, at virtual seconds `now`."""
        ranks, last, self._now = self._ranks, self._now, now
        rows = [rank.row or rank.measure(wave, step, now, last) for rank in ranks]
        if rows != self._rows:
            self._rows = rows
            self._columns = [*zip(*rows, strict=True), *self._limits]
        # These columns change in each step, also of rows that are reused.
        seconds = 0.0 if last is None else now - last
        times = [(step, int(seconds * 1e6))] * len(ranks)
        self._columns[_STEP], self._columns[_TIME] = zip(*times, strict=True)
        begun = [rank.pending_since for rank in ranks]
        ages = [int((now - at) * 1e6) if at < now else 0 for at in begun]
        self._columns[_AGE] = tuple(ages)
        return Snapshot(*self._columns)

    def decide(self, decisions: Decision | Sequence[Decision]) -> None:
        """Applies a decision for all ranks, or one for each, to the next step."""
        if isinstance(decisions, Decision):
            decisions = [decisions] * len(self._ranks)
        for rank, decision in zip(self._ranks, decisions, strict=True):
            rank.apply(decision)

    def end_wave(self) -> None:
        """Forgets the decision."""
        self._now = None
        for rank in self._ranks:
            rank.end_wave()
