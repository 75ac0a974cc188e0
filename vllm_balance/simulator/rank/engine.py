# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""All ranks together."""

import math
from bisect import insort
from collections.abc import Sequence
from operator import add
from typing import Any

from vllm_balance.core.policies import Decision
from vllm_balance.core.policies.rows import Limits, Snapshot

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

    A rank rests in steps that only let its decodes and its waiting prompts grow older:
    what they do is known without asking it. Most ranks rest in most steps.
    """

    def __init__(
        self,
        limits: RankLimits,
        max_model_len: int,
        async_scheduling: bool = False,
        shared_prefixes: bool = False,
        short_first: bool = False,
        received: bool = False,
    ) -> None:
        """Makes empty ranks.

        Args:
            limits: the limits of each rank.
            max_model_len: the longest request, prompt and output, in tokens.
            async_scheduling: whether a step is scheduled before the last has ended.
            shared_prefixes: whether prompts share beginnings: then all are cached.
            short_first: whether short prompts may pass long ones in a rank.
            received: whether prompts come with their KV cache.

        Raises:
            UsageError: the KV cache cannot hold the longest request.
        """
        limits.check_longest(max_model_len)
        each = Limits(limits.max_num_seqs, limits.max_num_batched_tokens)
        self._limits = [each] * limits.ranks

        def blocks() -> Blocks:
            if received:
                return ReceivedBlocks(limits)
            if shared_prefixes:
                return CachedBlocks(limits)
            return Blocks(limits)

        self._ranks = [
            GatedRank(
                limits,
                blocks(),
                async_scheduling,
                short_first,
            )
            for _ in range(limits.ranks)
        ]
        self._begin()

    def _begin(self) -> None:
        ranks = len(self._ranks)
        self._step = 0
        """Steps so far."""
        self._now: float | None = None
        """When rows were exchanged last in the wave."""
        self._awake = [*range(ranks)]
        """Ranks that do not rest, in their order."""
        self._asleep: dict[int, tuple[int, float]] = {}
        """Of the others: the steps before their rest, and before its end."""
        self._next_end = math.inf
        """Steps before the next end of a rest."""
        nothing = [0] * ranks
        self._loads = Loads(nothing, nothing, nothing, nothing, nothing)
        """The next step of those that rest."""
        self._counts = [rank.counts() for rank in self._ranks]
        self._decision: Decision | None = None
        """Of all ranks."""
        self._rows: list[Any] = [()] * ranks
        self._since: list[float | None] = [None] * ranks
        """Of each rank, since when its oldest pending request has been so."""
        self._columns: list[tuple[int, ...]] = []
        """Of the last snapshot; empty if rows have changed since."""

    def wake(self, *ranks: int) -> None:
        """Ends the rest of these ranks, or of all, before they change otherwise."""
        for rank in ranks or [*self._asleep]:
            if rank in self._asleep:
                since, _ = self._asleep.pop(rank)
                self._ranks[rank].skip(self._step - since, self._now)
                insort(self._awake, rank)
        self._next_end = min([n for _, n in self._asleep.values()], default=math.inf)

    def rest(self) -> bool:
        """Lets ranks rest from the next step on; whether all do, and some have work."""
        for number in [*self._awake]:
            if (steps := self._ranks[number].rest()) > 0:
                self._begin_rest(number, self._step + steps)
        return self.rests and self.has_work()

    @property
    def rests(self) -> bool:
        """Whether all ranks rest in the next step, if no request comes."""
        return not self._awake and self._step < self._next_end

    def _begin_rest(self, number: int, end: float) -> None:
        self._asleep[number] = self._step, end
        self._next_end = min(self._next_end, end)
        self._awake.remove(number)
        prefill, decodes, context, attended, before = self._loads
        decodes, context = [*decodes], [*context]
        decodes[number], context[number] = self._ranks[number].next_decodes()
        self._loads = Loads(prefill, decodes, context, attended, before)
        row = self._rows[number]
        if row and row.ended:
            self._rows[number] = row._replace(ended=0)
            self._columns = []

    @property
    def held(self) -> Sequence[bool]:
        """Per rank: whether an admissible request was held back in the step."""
        return [rank.held for rank in self._ranks]

    def add(self, rank: int, request: SimRequest) -> None:
        """Hands a request to a rank."""
        request.rank = rank
        self.wake(rank)
        self._ranks[rank].add(request)

    def cached_tokens(self, rank: int, request: SimRequest) -> int:
        """Tokens of a request that a rank has in its KV cache now."""
        return self._ranks[rank].cached_tokens(request)

    def has_work(self) -> bool:
        """Whether any rank has an unfinished request."""
        return any(rank.has_work() for rank in self._ranks)

    def counts(self) -> Counts:
        """What the ranks tell the coordinator."""
        for number in self._awake:
            self._counts[number] = self._ranks[number].counts()
        return self._counts

    def output_tokens(self, request: SimRequest) -> int:
        """Tokens of the answer that a request has which is on its way or in a rank."""
        rank = self._ranks[request.rank]
        if request.rank in self._asleep:
            since, end = self._asleep[request.rank]
            rank.skip(self._step - since, self._now)
            self._asleep[request.rank] = self._step, end
        return rank.output_tokens(request)

    def schedule(self) -> Loads:
        """Starts a step on every rank."""
        if self._step >= self._next_end:
            self.wake(*[n for n, (_, end) in self._asleep.items() if end <= self._step])
        self._step += 1
        loads = self._loads
        prefill, decodes, context, attended, before = loads
        later = [*map(add, context, decodes)]
        self._loads = Loads(prefill, decodes, later, attended, before)
        if not self._awake:
            return loads
        ranks = [*zip(*loads, strict=True)]
        for number in self._awake:
            ranks[number] = self._ranks[number].schedule()
        return Loads(*zip(*ranks, strict=True))

    def update(self) -> Outcome:
        """Ends the step that was scheduled first."""
        if not self._awake:
            return NOTHING
        first, done, wasted = Outcome([], [])
        for number in self._awake:
            brought = self._ranks[number].update()
            if brought is not NOTHING:
                first.extend(brought.first)
                done.extend(brought.done)
                wasted += brought.wasted
        return Outcome(first, done, wasted)

    def exchange(self, wave: int, step: int, now: float) -> Snapshot:
        """The rows of all ranks after a step, from 1, at virtual seconds `now`."""
        last, self._now = self._now, now
        if last is None:
            self.wake()
        for number in self._awake:
            rank = self._ranks[number]
            self._rows[number] = rank.measure(wave, step, now)
            self._since[number] = rank.pending_since
        if self._awake or not self._columns:
            self._columns = [*zip(*self._rows, strict=True)]
            self._columns += zip(*self._limits, strict=True)
        if last is not None and self._asleep:
            columns, ranks = self._columns, len(self._ranks)
            columns[_STEP] = (step,) * ranks
            columns[_TIME] = (int((now - last) * 1e6),) * ranks
            ages = [0.0 if since is None else now - since for since in self._since]
            columns[_AGE] = tuple([int(age * 1e6) for age in ages])
        return Snapshot(*self._columns)

    def decide(self, decisions: Decision | Sequence[Decision]) -> None:
        """Sets what every rank, or each rank, may do in the next step."""
        if isinstance(decisions, Decision):
            if decisions == self._decision:
                return
            self._decision = decisions
            decisions = [decisions] * len(self._ranks)
        else:
            self._decision = None
        for number in [*self._asleep]:
            if self._ranks[number].has_prompts:
                self.wake(number)
        for rank, decision in zip(self._ranks, decisions, strict=True):
            rank.apply(decision)

    def end_wave(self) -> None:
        """Forgets the decision."""
        self.wake()
        self._now = self._decision = None
        for rank in self._ranks:
            rank.end_wave()
