# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Bounds what holds can cost, by what was measured alone."""

import math
from collections import deque
from typing import TYPE_CHECKING

from .cost import whole_step
from .decision import Decision, Learned
from .in_flight import StepsInFlight
from .rows import SECONDS, Snapshot

if TYPE_CHECKING:
    from .adaptive import Adaptive

BOUND_REACHED = "hold_bound"
"""The reason while a request was held for as long as it may be."""
LOSING = "losing"
"""The reason while holds have cost more than they may."""
_ALLOWED = 0.01
"""Share of everybody's time that holds may cost without saving it."""
_MAX_PREFILLS_PER_RANK = 3
"""Of each other rank that a request may be held for."""
_MAX_SHARE_OF_WAIT = 1 / 3
"""Share of the time since it became pending for which a request may be held."""
_RECENT = 31
"""Steps that a median is of: a few slow ones do not move it."""


class Guard:
    """A policy whose holds are bounded, whatever it has learned.

    **Nobody is held longer** than three prefills of each other rank, or one of each
    other request that the hold delays, would take one after another; or, if that is
    more, than a third of the time since it became pending. **All holds together**
    take from those whom they delay at most the person-seconds that releases saved
    everybody in the ranks, 1 % of everybody's time, and once a prefill of each rank.

    A step with a budget withholds the share of a whole step that the budget lacks; a
    request is held for what was withheld since it became pending.
    """

    def __init__(self, policy: "Adaptive", in_flight: int = 1) -> None:
        self._policy = policy
        self._steps = StepsInFlight(in_flight)
        self._decode, self._prefill, self._lone_rate = _Median(), _Median(), _Median()
        self._usual = 0.0
        """Seconds of a recent step with a prefill; of any, if there was none."""
        self._credit = math.inf
        """Person-seconds that holds may still take."""
        self._now = self._total = 0.0
        """Seconds so far, and those that were withheld."""
        self.reset()

    @property
    def learned(self) -> Learned | None:
        return self._policy.learned

    def reset(self) -> None:
        """Resets the policy; what was measured stays."""
        self._policy.reset()
        self._steps.reset()
        self._withheld = self._delayed = 0.0
        """What the last decision kept back of a step, and from how many requests."""
        self._held = deque([(self._now, self._total)])
        """`_now` and `_total` after each step that a pending request has seen."""

    def decide(self, snapshot: Snapshot) -> Decision:
        back = self._steps.steps_back
        snapshot = self._steps.timed(snapshot)
        if back != self._steps.steps_back:
            self._policy.forget_costs()
        decision = self._policy.decide(snapshot)
        self._account(snapshot)
        delayed = delayed_requests(snapshot)
        if self._is_held_too_long(snapshot, delayed):
            decision = decision.opened(BOUND_REACHED)
        elif self._credit < 0:
            decision = decision.opened(LOSING)
        self._delayed = 0.0 if decision.admit else delayed
        self._withheld = withheld_share(decision, snapshot)
        return decision

    def _is_held_too_long(self, snapshot: Snapshot, delayed: float) -> bool:
        oldest = max(snapshot.pending_age_us) * SECONDS
        while len(self._held) > 1 and self._held[1][0] <= self._now - oldest:
            self._held.popleft()
        others = max(_MAX_PREFILLS_PER_RANK * (len(snapshot.running) - 1), delayed - 1)
        bound = max(self._usual * others, _MAX_SHARE_OF_WAIT * oldest)
        return 0 < bound <= self._total - self._held[0][1]

    def _account(self, snapshot: Snapshot) -> None:
        seconds = max(snapshot.step_time_us) * SECONDS
        if not seconds:  # the first step of a wave
            return
        requests = sum(snapshot.running) + sum(snapshot.waiting)
        self._now += seconds
        self._total += seconds * self._withheld
        self._held.append((self._now, self._total))
        if len(self._held) > 4096:  # who waits so long need not be known to a step
            self._held = deque([*self._held][::2])
        saved = self._saved([n for n in snapshot.prefill_tokens if n], seconds)
        self._usual = usual = self._prefill.value or self._decode.value
        lost = self._delayed * min(seconds, usual)  # a pause is not the hold's fault
        gained = requests * (saved + _ALLOWED * seconds)
        most = len(snapshot.running) * usual * requests
        self._credit = max(-most, min(self._credit + gained - lost, most))

    def _saved(self, tokens: list[int], seconds: float) -> float:
        """Seconds that the ranks' prompts would have taken more, one after another.

        By the rate of the lone prefills measured lately, but by no more than of this
        step's fullest rank: without the others' prompts it would have been as long.
        """
        if not tokens:
            self._decode.add(seconds)
            return 0.0
        self._prefill.add(seconds * self._steps.spans)
        longer = max(0.0, seconds - self._decode.value)
        rate = longer / max(tokens)
        if len(tokens) == 1:
            self._lone_rate.add(rate, tokens[0])
        if self._lone_rate.recent:
            rate = min(rate, self._lone_rate.value)
        return max(0.0, rate * sum(tokens) - longer)


def withheld_share(decision: Decision, snapshot: Snapshot) -> float:
    """Share of a whole step's prompt tokens that a decision keeps back."""
    if not (budget := decision.prefill_budget):
        return float(budget == 0)
    whole = max(1, max(snapshot.max_tokens) - max(snapshot.running))
    return 1 - min(1.0, budget / whole_step(whole, decision.cost_per_attended))


def delayed_requests(snapshot: Snapshot) -> float:
    """Requests that a hold delays; of those behind the pending, that share."""
    columns = snapshot.pending, snapshot.running, snapshot.waiting, snapshot.decoding
    rows = zip(*columns, strict=True)
    return math.fsum([n * (running + w) / (d + n) for n, running, w, d in rows if n])


class _Median:
    """Of recent values, each as often as its weight; the lower of an even number."""

    def __init__(self) -> None:
        self.recent: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        self._value: float | None = 0.0
        """None before anybody has asked for it."""

    def add(self, value: float, weight: int = 1) -> None:
        self.recent.append((value, weight))
        self._value = None

    @property
    def value(self) -> float:
        if self._value is None:
            half = sum([weight for _, weight in self.recent]) / 2
            values = iter(sorted(self.recent))
            while half > 0:
                self._value, weight = next(values)
                half -= weight
        return self._value or 0.0
