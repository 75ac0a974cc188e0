# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Policy `adaptive`: hold prefills while waiting is cheaper than what it saves.

After each step, on every rank alike, from the rows of all ranks::

    learn what steps cost, and how decodes fare
    for each rank r:                                  # its rent
        share[r] = decoding[r] + pending[r], over the mean of the ranks
        waiting[r] += dt * pending[r] * share[r] * (1 + age[r]^2 / usual_age^2) / 2
        waiting[r] = 0 if nothing is pending on r

    1. if nobody decodes: open                        # nothing is delayed by a release
    2. if the costs are unknown: open, but hold once enough decode
    3. work[r] = tokens to compute of the pending prompts, deep ones dearer
       B = the budget, at most a step, with the largest
           sum_r waiting[r] * weight * min(1, B / work[r]) - waste(B)
       if that is negative for every B: hold
    4. if the next decode ends more requests than wait for the release: hold
       otherwise: release B tokens on every rank

    waiting[r] *= 1 - min(1, B / work[r])             # what is released has paid
"""

import math
from collections.abc import Sequence

from .cost import (
    LEAST_CHUNK,
    MEMORY,
    CostLearner,
    StepCost,
    best_prefill_budget,
    whole_step,
)
from .decision import OPEN, Decision, Learned
from .flow import Flow
from .rows import SECONDS, Snapshot

_HOLD = Decision(admit=False, prefill_budget=0, reason="waiting_cost")
_DECODING = 3
"""Steps that an answer must last for holds to gain by it: with two tokens they lose
half of the mean; see `_first_decode`."""
_LONGEST_UNKNOWN = 30.0
"""Seconds of prefills beside decodes after which a step without a prefill is made in
any case; see `_first_decode`."""
_FIRST_TOKENS = 0.004
"""Share of the mean end-to-end time that is given for earlier first tokens while all
slots are in use; see `_slack`."""
_LEAST_LOAD = 0.07
"""Share of the slots in use below which no more is given: at most 3 % of the mean. With
0.02 eight clients of 256 slots lose 2 % of their throughput."""
_LEAST_STRETCH = 1e-3
"""Least share of the time that prefills are taken to need; what holds could save is
less than can be measured then."""


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
    arrivals makes the cycles that renewal theory finds best.
    """

    def __init__(self) -> None:
        self._learner = CostLearner()
        self._flow = Flow()
        self._waited = float(MEMORY)
        """How many waited in the recent steps, summed."""
        self._squares = 0.0
        """Their squared ages, summed; 0 at first, so that the first holds are short."""
        self._attention = 0.0
        """Tokens that attending to one costs, as learned."""
        self._unknown = 0.0
        """Seconds of decodes beside prefills, before any step without one was timed."""
        self._served: set[int] = set()
        """Ranks that have ever had a request: what never comes cannot be waited for."""
        self.reset()

    @property
    def learned(self) -> Learned | None:
        """What steps take, once a step without prefill was timed."""
        cost = self._learner.cost
        return cost and Learned(cost, self._learner.set_backs)

    def reset(self) -> None:
        """Forgets the waiting; keeps the costs and what is known of the requests."""
        self._waiting: Sequence[float] = ()
        self._nobody = True
        self._flow.reset()

    def forget_costs(self) -> None:
        """The times until now were of other steps; what decodes take stays."""
        self._learner.forget()

    def decide(self, snapshot: Snapshot) -> Decision:
        """Learns from the step that has ended and decides on the next one."""
        seconds = max(snapshot.step_time_us) * SECONDS
        self._learn(snapshot, seconds)
        self._wait(snapshot, seconds)
        decision = self._decide(snapshot)
        budget = decision.prefill_budget
        released = math.inf if budget is None else budget
        self._waiting = [
            waited * (1 - released / work) if released < work else 0.0
            for waited, work in zip(self._waiting, self._pending(snapshot), strict=True)
        ]
        if budget is None and sum(snapshot.decoding) <= sum(snapshot.pending):
            return decision  # a cut prompt takes more steps, in which others decode
        return decision._replace(cost_per_attended=self._attention, least=LEAST_CHUNK)

    def _decide(self, snapshot: Snapshot) -> Decision:
        cost = self._learner.cost
        before, self._nobody = self._nobody, not any(snapshot.decoding)
        # In a closed loop those may come who ended in the last step.
        clients_ask = self._flow.is_closed and not before and cost is not None
        if self._nobody and not clients_ask:
            return OPEN._replace(reason="idle")
        if cost is None:
            return self._first_decode(snapshot)
        budget = self._best_budget(snapshot, cost)
        if not budget:
            return _HOLD  # also an arrival, until the ranks have seen it
        if self._nobody:
            return OPEN._replace(reason="idle")
        if self._decodes_first(snapshot, budget, cost):
            return _HOLD._replace(reason="decodes_first")
        # Rounded up, so that nothing is left of a prompt for which it is meant.
        whole = int(budget) + (self._attention > 0)
        return Decision(admit=True, prefill_budget=whole, reason="gain")

    def _learn(self, snapshot: Snapshot, seconds: float) -> None:
        loads = zip(snapshot.running, snapshot.waiting, strict=True)
        self._served.update(rank for rank, load in enumerate(loads) if any(load))
        prefills, attended = snapshot.prefill_tokens, snapshot.prefill_attended
        largest = max(snapshot.max_tokens)
        if seconds:  # the first step of a wave has no step time
            if any(prefills) or self._flow.decoding:  # else nobody decoded
                work = self._work(prefills, attended)
                _, mean, idle = _shares(prefills, largest)
                # The fullest rank; of equal ones, the one that attends to most.
                _, pairs, most = max(zip(work, attended, prefills, strict=True))
                shares = most / largest, mean, idle, pairs / (largest * largest)
                self._learner.observe(seconds, *shares)
            if len(self._served) == 1:
                self._attention = 0.0  # others can neither wait nor have as much
            elif self._learner.cost is not None:
                self._attention = self._learner.cost.per_attended(largest)
        cost = self._learner.cost
        if cost is None and self._flow.decoding:
            self._unknown += seconds
        self._flow.observe(
            requests=_requests(snapshot),
            decoding=sum(snapshot.decoding),
            ended=sum(snapshot.ended),
            prefilled=sum(prefills),
            seconds=seconds,
            decode=cost and cost.decode,
        )

    def _wait(self, snapshot: Snapshot, seconds: float) -> None:
        """Adds a step's waiting, more on full ranks and for old requests.

        A rank with more requests than others ends last, and must not wait for these;
        one that is alone must not keep those waiting who wait for a slot. Half of it
        grows with the square of the age, as a share of the mean square of whoever
        waited lately, so that on average a second counts as one: the last percent of
        the first tokens are those of the oldest.
        """
        pending = snapshot.pending
        if len(self._waiting) != len(pending):
            self._waiting = [0.0] * len(pending)
        squares = [age * age * SECONDS * SECONDS for age in snapshot.pending_age_us]
        keep = 1 - 1 / MEMORY
        self._waited = self._waited * keep + sum(pending)
        total = math.fsum(n * x for n, x in zip(pending, squares, strict=True))
        self._squares = self._squares * keep + total
        if not seconds:  # the first step of a wave: nobody has waited
            return
        usual = max(self._squares / self._waited, seconds * seconds)
        ages = [(1 + square / usual) / 2 for square in squares]
        places = [d + n for d, n in zip(snapshot.decoding, pending, strict=True)]
        mean = sum(places) / len(places)
        if len(places) == 1 and mean:
            places = [_requests(snapshot)]
        self._waiting = [
            waited + seconds * n * place / mean * age if n else 0.0
            for waited, n, place, age in zip(
                self._waiting, pending, places, ages, strict=True
            )
        ]

    def _first_decode(self, snapshot: Snapshot) -> Decision:
        """A step without prefill, as soon as it is worth it; until then, all are open.

        The first one may take seconds, for which all wait. So it is made while as many
        decode as are pending, and three times those that begin in a step: answers are
        long enough then to gain anything. If too few do, it is made as well once
        prefills beside decodes have taken `_LONGEST_UNKNOWN` that many times.
        """
        ranks, pending = len(self._served), sum(snapshot.pending)
        prefills, left = snapshot.prefill_tokens, sum(snapshot.pending_tokens)
        begin = max(
            sum(n > 0 for n in prefills), sum(prefills) * pending / max(1, left)
        )
        times = max(1.0, max(pending, _DECODING * begin) / sum(snapshot.decoding))
        late = self._unknown >= _LONGEST_UNKNOWN * times
        if ranks > 1 and (times == 1 or late):
            self._unknown = 0.0
            return _HOLD._replace(reason="learn")
        return OPEN._replace(reason="learn")

    def _best_budget(self, snapshot: Snapshot, cost: StepCost) -> float:
        """The tokens per rank whose release gains most, or 0."""
        largest = max(snapshot.max_tokens)
        limit = max(1, largest - max(snapshot.running))
        requests, stretch = max(1, _requests(snapshot)), self._flow.stretch
        load = requests / max(1, sum(snapshot.max_running))
        weight = (1 + self._slack(load)) / (requests * stretch)
        work = zip(self._pending(snapshot), self._waiting, strict=True)
        return best_prefill_budget(
            [(tokens, waited * weight) for tokens, waited in work if tokens],
            ranks=len(self._served),
            limit=whole_step(limit, self._attention),
            max_tokens=largest,
            cost=cost,
        )

    def _slack(self, load: float) -> float:
        """How much more waiting weighs for the sake of first tokens; 0 is not at all.

        The cycle goes with the root of what waiting weighs. One that is s times shorter
        than the best one loses ``(s + 1 / s) / 2 - 1`` of the time that it is about,
        which is at most what prefills add to that of decodes, ``stretch - 1``. s is
        such that this is ``_FIRST_TOKENS / load`` of the mean end-to-end time: around
        its minimum the mean is flat, and on empty ranks a hold is all that a request
        waits for. `load` is the requests in the ranks, as a share of the slots.
        """
        prefills = max(self._flow.stretch - 1, _LEAST_STRETCH)
        given = _FIRST_TOKENS / max(load, _LEAST_LOAD) / prefills
        shorter = 1 + given + math.sqrt(given * (given + 2))
        return shorter * shorter - 1

    def _decodes_first(self, snapshot: Snapshot, budget: float, cost: StepCost) -> bool:
        """Whether decoding ends more requests in the same time than wait for it.

        A step more of decodes spares those that end in it the whole release, and delays
        all that have no first token by the step. Short answers are so given before more
        prompts are begun, but a queue is not kept waiting for them. In a closed loop
        nothing is spared: whoever ends is replaced by one that waits for the release.
        Nor on a rank alone, where a step more for few decodes only comes later.
        """
        if self._flow.is_closed or len(snapshot.running) == 1:
            return False
        served = [min(work, budget) for work in self._pending(snapshot)]
        seconds = cost.prefill_seconds(*_shares(served, max(snapshot.max_tokens)))
        decoding = sum(snapshot.decoding)
        waiting = _requests(snapshot) - decoding
        return decoding * self._flow.ending * seconds > waiting * cost.decode

    def _pending(self, snapshot: Snapshot) -> Sequence[float]:
        """What the pending tokens of each rank cost."""
        return self._work(snapshot.pending_tokens, snapshot.pending_attended)

    def _work(self, tokens: Sequence[int], attended: Sequence[int]) -> Sequence[float]:
        """What prompt tokens cost per rank, with what they attend to."""
        price = self._attention
        if not price:
            return tokens
        return [n + price * pairs for n, pairs in zip(tokens, attended, strict=True)]


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
