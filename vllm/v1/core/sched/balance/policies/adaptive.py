# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Policy `adaptive`: hold prefills while waiting is cheaper than what it saves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .attention_cost import LEAST_CHUNK, whole_step
from .decision import OPEN, Decision, Learned
from .decodes import Decodes
from .prefill_budget import best_prefill_budget
from .rows import SECONDS, Snapshot
from .step_cost import MEMORY, CostLearner, StepCost
from .traffic import Traffic, optimal_cycle

_HOLD = Decision(admit=False, prefill_budget=0, reason="waiting_cost")
_DECODES_FIRST = _HOLD._replace(reason="decodes_first")
_DECODING = 3
"""Steps that an answer must last for holds to gain by it: with two tokens they lose
half of the mean; see `_first_decode`."""
_FIRST_TOKENS = 0.004
"""Share of the mean end-to-end time that is given for earlier first tokens while all
slots are in use; see `Adaptive._slack`."""
_LEAST_LOAD = 0.07
"""Share of the slots in use below which no more is given: at most 3 % of the mean. With
0.02 eight clients of 256 slots lose 2 % of their throughput."""
_LEAST_STRETCH = 1e-3
"""Least share of the time that prefills are taken to need; what holds could save is
less than can be measured then."""


@dataclass(frozen=True)
class AdaptiveParameters:
    """Parameters of `Adaptive`."""

    window: float = 30.0
    """Seconds over which the traffic is measured: several cycles, of seconds each."""


_LONGEST_UNKNOWN = AdaptiveParameters.window
"""Seconds of prefills beside decodes after which a step without a prefill is made in
any case: as long as the traffic is measured over; see `Adaptive._first_decode`."""


class Adaptive:
    """Waiting against waste, with a budget for all ranks that fits their work.

    What counts is the time average of the requests in the ranks: by Little's law that
    is the mean end-to-end time at a given rate, and the throughput at a given number
    in flight. Both sides are person-seconds, seconds times the requests that lose them.

    - A hold of dt seconds delays the n_r requests that are pending on rank r: its
      *waiting* grows by ``dt * n_r``.
    - A release while other ranks have less to prefill wastes time (`StepCost.waste`),
      and that delays all N requests, by so much more as prefills stretch the time of
      those that decode: its *price* is ``waste * N * stretch``.

    A release is due once the waiting has reached the price: rent-or-buy, which never
    pays more than twice what the best choice in hindsight would have, and with even
    arrivals makes the cycles that renewal theory finds best (`traffic.py`).
    `best_prefill_budget` finds the tokens per rank that gain most. A due release still
    waits while decoding ends more requests than wait for it (`_decodes_first`).
    Everything is open while a cycle is shorter than a step, and while no rank decodes:
    nothing is worth waiting for. But where clients ask again at once, as in a closed
    loop, one step more is waited for those whose answers were the last to end.

    Everything is computed from gathered rows, in O(ranks log ranks).
    """

    def __init__(self, parameters: AdaptiveParameters) -> None:
        self._parameters = parameters
        self._learner = CostLearner()
        self._traffic = Traffic(parameters.window)
        self._decodes = Decodes()
        self._waited = float(MEMORY)
        """How many waited in the recent steps, summed."""
        self._squares = 0.0
        """Their squared ages, summed; 0 at first, so that the first holds are short."""
        self._attention = 0.0
        """Tokens that attending to one costs, as learned."""
        self._unknown = 0.0
        """Seconds of decodes beside prefills, before any step without one was timed."""
        self._served: set[int] = set()
        """Ranks that have ever had a request."""
        self.reset()

    @property
    def learned(self) -> Learned | None:
        """What steps take, once a step without prefill was timed."""
        cost = self._learner.cost
        return cost and Learned(cost, self._learner.set_backs)

    def reset(self) -> None:
        """Forgets the waiting; keeps the costs and the traffic."""
        self._waiting: list[float] = []
        self._nobody = True
        self._decodes.reset()

    def decide(self, snapshot: Snapshot) -> Decision:
        """Learns from the step that has ended and decides on the next one."""
        ranks = len(snapshot.running)
        seconds = max(snapshot.step_time_us) * SECONDS
        self._learn(snapshot, seconds)
        if len(self._waiting) != ranks:
            self._waiting = [0.0] * ranks
        loads = zip(snapshot.running, snapshot.waiting, strict=True)
        self._served.update(rank for rank, load in enumerate(loads) if any(load))
        decision = self._decide(snapshot, seconds)
        if decision.prefill_budget is None:
            self._waiting = [0.0] * ranks
            # A cut prompt takes more steps, in which the others decode.
            if sum(snapshot.decoding) <= sum(snapshot.pending):
                return decision
        return decision._replace(cost_per_attended=self._attention, least=LEAST_CHUNK)

    def _learn(self, snapshot: Snapshot, seconds: float) -> None:
        prefills = snapshot.prefill_tokens
        prefilled = sum(prefills)
        if seconds:  # the first step of a wave has no step time
            attended, largest = snapshot.prefill_attended, max(snapshot.max_tokens)
            work = self._work(prefills, attended)
            if prefilled or self._decodes.before:  # else nobody decoded
                _, mean, idle = _shares(prefills, largest)
                # The fullest rank; of equal ones, the one that attends to most.
                _, pairs, most = max(zip(work, attended, prefills, strict=True))
                shares = most / largest, mean, idle, pairs / (largest * largest)
                self._learner.observe(seconds, *shares)
            pending = math.fsum(self._pending(snapshot))
            done = math.fsum(work)
            self._traffic.observe(seconds, done, sum(snapshot.pending), pending)
            if len(self._served) == 1:
                self._attention = 0.0  # others can neither wait nor have as much
            elif self._learner.cost is not None:
                self._attention = self._learner.cost.per_attended(largest)
        cost = self._learner.cost
        if cost is None and self._decodes.before:
            self._unknown += seconds
        self._decodes.observe(
            _requests(snapshot),
            sum(snapshot.decoding),
            prefilled,
            seconds,
            cost and cost.decode,
        )

    def _decide(self, snapshot: Snapshot, seconds: float) -> Decision:
        tokens = self._pending(snapshot)
        cost = self._learner.cost
        nobody, self._nobody = self._nobody, not any(snapshot.decoding)
        replaced = self._decodes.replaced and not nobody
        if self._nobody and not (replaced and cost):
            return OPEN._replace(reason="idle")
        if cost is None:
            return self._first_decode(snapshot)
        limit = max(1, max(snapshot.max_tokens) - max(snapshot.running))
        requests = _requests(snapshot)
        load = requests / max(1, sum(snapshot.max_running))
        if self._is_short(snapshot, cost):
            if any(tokens) and self._decodes_first(snapshot, limit, cost):
                return _DECODES_FIRST
            return OPEN._replace(reason="short")
        if not any(tokens):
            self._waiting = [0.0] * len(tokens)
            return _HOLD  # an arrival must not slip in before the ranks have seen it
        self._wait(snapshot, seconds)
        scale = (1 + self._slack(load)) / (requests * self._decodes.stretch)
        budget = best_prefill_budget(
            [
                (work, waited * scale)
                for work, waited in zip(tokens, self._waiting, strict=True)
                if work
            ],
            ranks=len(self._served),
            limit=whole_step(limit, self._attention),
            max_tokens=max(snapshot.max_tokens),
            cost=cost,
        )
        if not budget:
            return _HOLD
        if self._nobody:
            return OPEN._replace(reason="idle")
        if self._decodes_first(snapshot, budget, cost):
            return _DECODES_FIRST
        self._waiting = [
            waited * (1 - budget / work) if budget < work else 0.0
            for work, waited in zip(tokens, self._waiting, strict=True)
        ]
        # Rounded up, so that nothing is left of a prompt for which it is meant.
        whole = int(budget) + (self._attention > 0)
        return Decision(admit=True, prefill_budget=whole, reason="gain")

    def _pending(self, snapshot: Snapshot) -> Sequence[float]:
        """What the pending tokens of each rank cost."""
        return self._work(snapshot.pending_tokens, snapshot.pending_attended)

    def _work(self, tokens: Sequence[int], attended: Sequence[int]) -> Sequence[float]:
        """What prompt tokens cost per rank, with what they attend to."""
        price = self._attention
        if not price:
            return tokens
        return [n + price * pairs for n, pairs in zip(tokens, attended, strict=True)]

    def _first_decode(self, snapshot: Snapshot) -> Decision:
        """A step without prefill, as soon as it is worth it; until then, all are open.

        The first one may take seconds, for which all wait. So it is made while as many
        decode as are pending, and three times those that begin in a step: answers are
        long enough then to gain anything. If too few do, it is made as well once
        prefills beside decodes have taken `_LONGEST_UNKNOWN` that many times.
        """
        ranks = len(self._served)
        prefills = snapshot.prefill_tokens
        begin = sum(n > 0 for n in prefills)
        if (size := self._traffic.size) > 1:
            begin = max(begin, sum(prefills) / size)
        enough = max(sum(snapshot.pending), _DECODING * begin)
        times = max(1.0, enough / sum(snapshot.decoding))
        late = self._unknown >= _LONGEST_UNKNOWN * times
        if ranks > 1 and (times == 1 or late):
            self._unknown = 0.0
            return _HOLD._replace(reason="learn")
        return OPEN._replace(reason="learn")

    def _is_short(self, snapshot: Snapshot, cost: StepCost) -> bool:
        """Whether prompts are so short that nobody should wait for a whole step."""
        if self._traffic.size <= 1:
            return False  # until one was pending, their size is not known
        ranks = len(self._served)
        most = min(1.0, self._traffic.size / max(snapshot.max_tokens))
        price = cost.waste(most, mean=most / ranks, idle=1 - 1 / ranks)
        price *= self._decodes.stretch
        requests = _requests(snapshot)
        return optimal_cycle(price, requests, self._traffic.rate) < cost.decode

    def _wait(self, snapshot: Snapshot, seconds: float) -> None:
        """Adds a step's waiting, more for old requests.

        Half of it grows with the square of the age, as a share of the mean square of
        whoever waited lately, so that on average a second counts as one: the last
        percent of the first tokens are those of the oldest.
        """
        pending = snapshot.pending
        squares = [age * age * SECONDS * SECONDS for age in snapshot.pending_age_us]
        keep = 1 - 1 / MEMORY
        self._waited = self._waited * keep + sum(pending)
        total = math.fsum(n * x for n, x in zip(pending, squares, strict=True))
        self._squares = self._squares * keep + total
        if not seconds:  # the first step of a wave: nobody has waited
            return
        usual = max(self._squares / self._waited, seconds * seconds)
        self._waiting = [
            waited + seconds * n * (1 + square / usual) / 2 if n else 0.0
            for waited, n, square in zip(self._waiting, pending, squares, strict=True)
        ]

    def _slack(self, load: float) -> float:
        """How much more waiting weighs for the sake of first tokens; 0 is not at all.

        The cycle goes with the root of what waiting weighs. One that is s times shorter
        than the best one loses ``(s + 1 / s) / 2 - 1`` of the time that it is about,
        which is at most what prefills add to that of decodes, ``stretch - 1``. s is
        such that this is ``_FIRST_TOKENS / load`` of the mean end-to-end time: around
        its minimum the mean is flat, and on empty ranks a hold is all that a request
        waits for.

        Args:
            load: requests in the ranks, as a share of the slots.
        """
        prefills = max(self._decodes.stretch - 1, _LEAST_STRETCH)
        given = _FIRST_TOKENS / max(load, _LEAST_LOAD) / prefills
        shorter = 1 + given + math.sqrt(given * (given + 2))
        return shorter * shorter - 1

    def _decodes_first(self, snapshot: Snapshot, budget: float, cost: StepCost) -> bool:
        """Whether decoding ends more requests in the same time than wait for it.

        A step more of decodes spares those that end in it the whole release, and delays
        all that have no first token by the step. Short answers are so given before more
        prompts are begun, but a queue is not kept waiting for them. In a closed loop
        nothing is spared: whoever ends is replaced by one that waits for the release.
        """
        if self._decodes.replaced:
            return False
        served = [min(work, budget) for work in self._pending(snapshot)]
        seconds = cost.prefill_seconds(*_shares(served, max(snapshot.max_tokens)))
        decoding = sum(snapshot.decoding)
        waiting = _requests(snapshot) - decoding
        return decoding * self._decodes.ending * seconds > waiting * cost.decode


def _requests(snapshot: Snapshot) -> int:
    """Requests in all ranks."""
    return sum(snapshot.running) + sum(snapshot.waiting)


def _shares(tokens: Sequence[float], largest: int) -> tuple[float, float, float]:
    """Tokens of the fullest and the mean rank, by the largest step; idle ranks."""
    ranks = len(tokens)
    return (
        max(tokens) / largest,
        math.fsum(tokens) / ranks / largest,
        sum(not n for n in tokens) / ranks,
    )
