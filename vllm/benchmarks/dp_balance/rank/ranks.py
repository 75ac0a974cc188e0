# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""An engine of ranks that are an object each, modelled or real."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from vllm.v1.core.sched.balance.dispatch import Backlog
from vllm.v1.core.sched.balance.policies.by_name import Decision
from vllm.v1.core.sched.balance.policies.rows import Row, Snapshot

from ..front_end.coordinator import Counts, RankCounts
from ..requests.workload import SimRequest
from ..step_time.model import Loads
from .engine import Outcome


class Load(NamedTuple):
    """What a rank computes in a step, as in `cost.Loads`."""

    prefill: int
    decodes: int
    context: int
    attended: float


class Rank(Protocol):
    """One scheduler with its gate."""

    @property
    def held(self) -> bool:
        """Whether an admissible request was held back in the step."""
        ...

    def add(self, request: SimRequest) -> None:
        """Hands a request to the rank."""
        ...

    def has_work(self) -> bool:
        """Whether there is an unfinished request."""
        ...

    def counts(self) -> RankCounts:
        """What the rank tells the coordinator."""
        ...

    def backlog(self) -> Backlog:
        """What front-ends are told that dispatch by tokens."""
        ...

    def schedule(self) -> Load:
        """Starts a step, and returns what it computes."""
        ...

    def update(self) -> Outcome:
        """Ends the step that was scheduled first."""
        ...

    def measure(self, wave: int, step: int, now: float) -> Row:
        """The rank's row after the step, as its gate measures it."""
        ...

    def apply(self, decision: Decision) -> None:
        """Sets what the rank may do in the next step."""
        ...

    def end_wave(self) -> None:
        """Forgets the decision, the holds, and steps without requests."""
        ...


class RankEngine:
    """All ranks together, as `engine.Engine` says."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks = ranks
        self.held: Sequence[bool] = [False] * len(ranks)

    def add(self, rank: int, request: SimRequest) -> None:
        """Hands a request to a rank."""
        request.rank = rank
        self._ranks[rank].add(request)

    def has_work(self) -> bool:
        """Whether any rank has an unfinished request."""
        return any(rank.has_work() for rank in self._ranks)

    def counts(self) -> Counts:
        """What the ranks tell the coordinator."""
        return [rank.counts() for rank in self._ranks]

    def backlogs(self) -> Counts:
        """What the ranks tell the coordinator for a dispatch by tokens."""
        return [RankCounts(*rank.backlog()) for rank in self._ranks]

    def schedule(self) -> Loads:
        """Starts a step on every rank."""
        loads = [rank.schedule() for rank in self._ranks]
        self.held = [rank.held for rank in self._ranks]
        return Loads(*zip(*loads, strict=True))

    def update(self) -> Outcome:
        """Ends the step that was scheduled first."""
        outcome = Outcome([], [])
        for rank in self._ranks:
            first, done = rank.update()
            outcome.first.extend(first)
            outcome.done.extend(done)
        return outcome

    def exchange(self, wave: int, step: int, now: float) -> Snapshot:
        """The rows of all ranks, as their gates measure them."""
        return Snapshot.from_rows(
            [rank.measure(wave, step, now) for rank in self._ranks]
        )

    def decide(self, decisions: Decision | Sequence[Decision]) -> None:
        """Sets what every rank, or each rank, may do in the next step."""
        if isinstance(decisions, Decision):
            decisions = [decisions] * len(self._ranks)
        for rank, decision in zip(self._ranks, decisions, strict=True):
            rank.apply(decision)

    def end_wave(self) -> None:
        """Forgets the decision and the holds."""
        for rank in self._ranks:
            rank.end_wave()
