# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Policy `adaptive`: hold prefills while waiting is cheaper than what it saves."""

import math
from dataclasses import dataclass
from operator import add, truediv

from .costs import CostLearner, StepCost
from .cycle import Traffic, fuller_release, optimal_cycle, shortened_cycle
from .decision import OPEN, Decision
from .prefill_budget import best_prefill_budget
from .rows import Snapshot

_HOLD = Decision(admit=False, prefill_budget=0, reason="waiting_cost")
_SMALLEST_BATCH = 2.5
"""Requests per cycle below which there is nothing to collect."""
_SECONDS = 1e-6
"""The microseconds of a row in seconds."""
_LEAST_LOAD = 0.25
"""Share of the slots in use below which deadlines get no shorter."""


@dataclass(frozen=True)
class AdaptiveParameters:
    """Parameters of `Adaptive`. Only the first is meant for operators."""

    ttft_budget: float | None = None
    """Time to first token, in seconds, that the operator promises. Requests that
    still can keep it are not held past the point where they no longer could."""
    urgency: float = 1.2
    """Growth of the waiting cost with age. With 1.5, it would pay for the waste of a
    release after exactly one cycle if arrivals were even: the integral of
    ``urgency * (t / T) * m t / N`` over one cycle T would equal ``m T^2 / 2N``. They
    are not, and ranks that are waited for get work of their own."""
    load_exponent: float = 3.0
    """How much more the waiting cost of a rank with more requests weighs; the fullest
    rank decides when the last request ends. The weights of the ranks have the mean
    1."""
    tolerance: float = 0.03
    """Share of the throughput that may be given for shorter waits where all slots are
    in use and no request waits for one; see `Adaptive._tolerance`."""
    deadline_cycles: float = 2.0
    """Age at which a rank's pending work must be served, in cycles, when a rank is
    full; times ``log2(2 * ranks)``, because the oldest of more ranks is older. The
    fewer slots are in use, the younger, down to a quarter."""
    window: float = 30.0
    """Seconds over which the traffic is measured."""

    def __post_init__(self) -> None:
        if self.ttft_budget is not None and not self.ttft_budget > 0:
            raise ValueError(f"ttft_budget must be positive, not {self.ttft_budget}")


class Adaptive:
    """Waiting cost against waste, with a budget for all ranks that fits their work.

    Every second that n_r of N requests are pending on rank r costs the share n_r / N
    of the throughput. The policy lets this *waiting cost* accrue,

    ``cost_r += dt * (n_r / N) * load_r^load_exponent / mean(load^load_exponent)
    * urgency * age_r / cycle``

    and compares it with the *waste* of releasing now, while other ranks have less to
    prefill (`StepCost.waste`). `best_prefill_budget` releases as many tokens per
    rank as gain most, once any gain is not negative: rent-or-buy, which never pays
    more than twice what the best choice in hindsight would have. `cycle` is the one
    that renewal theory finds best for the learned costs and traffic (`cycle.py`), so
    no constant is in seconds. Release is immediate

    - while nobody's time is at stake: no rank decodes anything, or one with pending
      work does not;
    - when less than 2.5 requests arrive per cycle: nothing is worth waiting for;
    - when a request would otherwise miss the operator's TTFT budget.

    A rank whose oldest request has been pending past a deadline (`deadline_cycles`)
    is served whole.

    Everything is computed from gathered rows, in O(ranks log ranks).
    """

    def __init__(self, parameters: AdaptiveParameters) -> None:
        self._parameters = parameters
        self._learner = CostLearner()
        self._traffic = Traffic(parameters.window)
        self.reset()

    def reset(self) -> None:
        """Forgets the waiting costs; keeps the costs and the traffic."""
        self._waiting_costs: list[float] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        """Learns from the step that has ended and decides on the next one."""
        ranks = len(snapshot.running)
        seconds = max(snapshot.step_time_us) * _SECONDS
        self._learn(snapshot, seconds)
        if len(self._waiting_costs) != ranks:
            self._waiting_costs = [0.0] * ranks
        decision = self._decide(snapshot, seconds)
        if decision.prefill_budget is None:
            self._waiting_costs = [0.0] * ranks
        return decision

    def _learn(self, snapshot: Snapshot, seconds: float) -> None:
        if not seconds:
            return  # the first step of a wave has no step time
        prefilled = sum(snapshot.prefill_tokens)
        largest = max(snapshot.max_tokens)
        self._learner.observe(
            seconds,
            most=max(snapshot.prefill_tokens) / largest,
            mean=prefilled / len(snapshot.running) / largest,
        )
        self._traffic.observe(
            seconds, prefilled, sum(snapshot.pending), sum(snapshot.pending_tokens)
        )

    def _decide(self, snapshot: Snapshot, seconds: float) -> Decision:
        requests, tokens = snapshot.pending, snapshot.pending_tokens
        running = sum(snapshot.running)
        pending = sum(requests)
        if self._is_idle(snapshot):
            return OPEN._replace(reason="idle")
        cost = self._learner.cost
        if cost is None:
            return self._first_decode(snapshot)
        size = min(self._traffic.size / max(snapshot.max_tokens), 1.0)
        waste = cost.waste(most=size, mean=size / len(requests))
        total = running + pending
        cycle = optimal_cycle(waste, total, self._traffic.rate)
        if cycle * self._traffic.rate < _SMALLEST_BATCH:
            return OPEN._replace(reason="alone")
        if not pending:
            self._waiting_costs = [0.0] * len(requests)
            return _HOLD  # an arrival must not slip in before the ranks have seen it
        limit = max(1, max(snapshot.max_tokens) - max(snapshot.running))
        if self._budget_is_due(snapshot, limit, cost):
            return OPEN._replace(reason="ttft_budget")
        used = map(add, snapshot.running, requests)
        load = min(1.0, max(map(truediv, used, snapshot.max_running)))
        cycle, waste = fuller_release(
            cycle, waste, load * cycle * self._traffic.rate / len(requests)
        )
        cycle = shortened_cycle(cycle, waste, self._tolerance(snapshot, load))
        self._accrue(snapshot, seconds / total / cycle)
        floor = self._overdue(
            snapshot,
            limit,
            deadline=self._parameters.deadline_cycles
            * math.log2(2 * len(requests))
            * cycle
            * max(load, _LEAST_LOAD),
        )
        budget = best_prefill_budget(
            [
                (work, waited)
                for work, waited in zip(tokens, self._waiting_costs, strict=True)
                if work
            ],
            ranks=len(requests),
            limit=limit,
            max_tokens=max(snapshot.max_tokens),
            cost=cost,
            floor=floor,
        )
        if not budget:
            return _HOLD
        self._waiting_costs = [
            waited * (1 - budget / work) if budget < work else 0.0
            for work, waited in zip(tokens, self._waiting_costs, strict=True)
        ]
        return Decision(
            admit=True, prefill_budget=budget, reason="deadline" if floor else "gain"
        )

    @staticmethod
    def _is_idle(snapshot: Snapshot) -> bool:
        """Whether no rank decodes, or one that could prefill does not."""
        ranks = list(zip(snapshot.pending, snapshot.decoding, strict=True))
        return not any(snapshot.decoding) or any(
            pending and not decoding for pending, decoding in ranks
        )

    @staticmethod
    def _first_decode(snapshot: Snapshot) -> Decision:
        """Makes a step without prefill, if none has been timed and some can decode."""
        if any(
            active > n
            for active, n in zip(snapshot.running, snapshot.pending, strict=True)
        ):
            return _HOLD._replace(reason="learn")
        return OPEN._replace(reason="learn")

    def _tolerance(self, snapshot: Snapshot, load: float) -> float:
        """What shorter waits are worth, as a share of the throughput.

        ``tolerance * (2 - load) * (share of the waiting requests that have a slot)``:
        twice as much on empty ranks, where a hold is all that a request waits for;
        nothing where requests queue for slots, whose wait only throughput shortens.

        Args:
            snapshot: the rows.
            load: share of the slots in use, of the fullest rank.
        """
        waiting = sum(snapshot.waiting)
        queued = sum(
            [
                n - able
                for n, able in zip(snapshot.waiting, snapshot.pending, strict=True)
                if n > able
            ]
        )
        with_slot = 1 - queued / waiting if waiting else 1.0
        return self._parameters.tolerance * (2 - load) * with_slot

    def _accrue(self, snapshot: Snapshot, share: float) -> None:
        """Adds a step's waiting cost.

        Args:
            snapshot: the rows.
            share: seconds of the step per request per cycle.
        """
        exponent = self._parameters.load_exponent
        weights = [
            load**exponent for load in map(add, snapshot.running, snapshot.waiting)
        ]
        # Somebody runs, or there would be an immediate release: the sum is positive.
        scale = self._parameters.urgency * share * _SECONDS * len(weights)
        scale /= sum(weights)
        self._waiting_costs = [
            waited + scale * n * age * weight if n else 0.0
            for waited, n, age, weight in zip(
                self._waiting_costs,
                snapshot.pending,
                snapshot.pending_age_us,
                weights,
                strict=True,
            )
        ]

    @staticmethod
    def _overdue(snapshot: Snapshot, limit: int, deadline: float) -> int:
        """Pending tokens of the rank whose oldest request has been pending longest.

        0 unless that is longer than the deadline (seconds).
        """
        age, work = max(
            zip(snapshot.pending_age_us, snapshot.pending_tokens, strict=True)
        )
        return min(work, limit) if age * _SECONDS > deadline else 0

    def _budget_is_due(self, snapshot: Snapshot, limit: int, cost: StepCost) -> bool:
        """Whether one more decode step would make a request miss the TTFT budget.

        The oldest request of a rank that still can keep it is taken to be served
        last, in full steps: ``wait + decode + ceil(p_r / limit) * full >= budget``.
        """
        budget = self._parameters.ttft_budget
        if budget is None:
            return False
        full = cost.decode + cost.fixed + cost.own + cost.shared
        return any(
            wait * _SECONDS + cost.decode + math.ceil(work / limit) * full >= budget
            for wait, work in zip(
                snapshot.wait_us, snapshot.pending_tokens, strict=True
            )
            if wait and work
        )
