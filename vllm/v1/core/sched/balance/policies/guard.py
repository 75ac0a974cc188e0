# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Bounds what holds can cost, by what was measured alone."""

import math
from collections import deque
from collections.abc import Iterable

from .cost import whole_step
from .decision import Decision, Learned, Policy
from .rows import SECONDS, Snapshot

BOUND_REACHED = "hold_bound"
"""The reason while a request was held for as long as it may be."""
LOSING = "losing"
"""The reason while holds have cost more than they may."""

_ALLOWED = 0.01
"""Share of everybody's time that holds may cost without saving it: what a mean may lose
in a world that was not foreseen."""
_RECENT = 31
"""Steps that a median is of: a few slow ones do not move it."""


class Guard:
    """A policy whose holds are bounded, whatever it has learned.

    **Nobody is held longer** than the prefills of all other ranks, or of all others
    whom the hold delays, would take one after another. **All holds together** take from
    those whom they delay at most the person-seconds that releases saved everybody in
    the ranks, 1 % of everybody's time, and a first credit: of all ranks' prefills.

    Held is what was withheld since a request became pending: of a step with a budget
    the share of a whole one that it lacks. Who then waits for prompts before it in an
    open step is held anew after that.

    A release that lengthens a step by E for prompts of t_r tokens has saved
    ``rate * sum(t_r) - E`` seconds, if that is positive. The rate is that of the lone
    prefills measured lately (median of their tokens), but at most ``E / max(t_r)``: the
    same step without the other ranks' prompts would not have been longer.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._decode, self._prefill = _Median(), _Median()
        self._lone_rate = _Median()
        self._credit = math.inf
        """Person-seconds that holds may still take."""
        self._losing = False
        self._now = self._total = 0.0
        self._withheld = 0.0
        """Share of a step's prompt tokens that the last decision kept back."""
        self._delayed = 0.0
        """Requests that it delays."""
        self._restart()

    def _restart(self) -> None:
        self._held = deque([(self._now, self._total)])
        """Times, and the seconds withheld until then, since all were open; only those
        that a pending request has seen."""

    @property
    def learned(self) -> Learned | None:
        """What the policy knows of the device."""
        return self._policy.learned

    def decide(self, snapshot: Snapshot) -> Decision:
        """The policy's decision, or a release.

        The policy sees every snapshot, also those that it does not decide on.
        """
        decision = self._policy.decide(snapshot)
        self._account(snapshot)
        delayed = _delayed(snapshot)
        if self._is_held_too_long(snapshot, delayed):
            decision = decision.opened(BOUND_REACHED)
        elif self._losing:
            decision = decision.opened(LOSING)
        if decision.prefill_budget is None:
            self._restart()
        self._delayed = 0.0 if decision.admit else delayed
        self._withheld = _withheld(decision, snapshot)
        return decision

    def reset(self) -> None:
        """Resets the policy; what was measured stays."""
        self._policy.reset()
        self._delayed = self._withheld = 0.0
        self._restart()

    def _usual(self) -> float:
        """Seconds of a recent step with a prefill; of any, if there was none."""
        return self._prefill.value or self._decode.value

    def _is_held_too_long(self, snapshot: Snapshot, delayed: float) -> bool:
        oldest = max(snapshot.pending_age_us) * SECONDS
        held = self._held
        while len(held) > 1 and held[1][0] <= self._now - oldest:
            held.popleft()
        bound = self._usual() * max(1.0, len(snapshot.running) - 1, delayed - 1)
        return oldest > 0 < bound <= self._total - held[0][1]

    def _account(self, snapshot: Snapshot) -> None:
        """Adds the step that has ended to what is measured, and to the credit."""
        seconds = max(snapshot.step_time_us) * SECONDS
        if not seconds:  # the first step of a wave
            return
        self._now += seconds
        self._total += seconds * self._withheld
        self._held.append((self._now, self._total))
        saved = self._saved(snapshot.prefill_tokens, seconds) + _ALLOWED * seconds
        usual = self._usual()
        requests = sum(snapshot.running) + sum(snapshot.waiting)
        # A pause of the device is not the hold's fault.
        lost = self._delayed * min(seconds, usual)
        most = len(snapshot.running) * usual * requests
        self._credit = max(-most, min(self._credit + requests * saved - lost, most))
        if self._credit < 0:
            self._losing = True
        elif self._credit > 0:
            self._losing = False

    def _saved(self, tokens: Iterable[int], seconds: float) -> float:
        """Seconds that the ranks' prompts would have taken more, one after another."""
        tokens = [n for n in tokens if n]
        if not tokens:
            self._decode.add(seconds)
            return 0.0
        self._prefill.add(seconds)
        longer = max(0.0, seconds - self._decode.value)
        rate = longer / max(tokens)
        if len(tokens) == 1:
            self._lone_rate.add(rate, tokens[0])
        if self._lone_rate.known:
            rate = min(rate, self._lone_rate.value)
        return max(0.0, rate * sum(tokens) - longer)


def _withheld(decision: Decision, snapshot: Snapshot) -> float:
    """Share of a whole step's prompt tokens that a decision keeps back."""
    budget = decision.prefill_budget
    if budget is None:
        return 0.0
    whole = max(1, max(snapshot.max_tokens) - max(snapshot.running))
    return 1 - min(1.0, budget / whole_step(whole, decision.cost_per_attended))


def _delayed(snapshot: Snapshot) -> float:
    """Requests that a hold delays: all that wait on a rank with something pending.

    Those without a place wait for those who decode as well: of whoever may have places,
    the share that is pending.
    """
    columns = snapshot.pending, snapshot.running, snapshot.waiting, snapshot.decoding
    return math.fsum(
        [
            pending * (running + waiting) / (decoding + pending)
            for pending, running, waiting, decoding in zip(*columns, strict=True)
            if pending
        ]
    )


class _Median:
    """Of the recent values; the lower one of an even number."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        self.value = 0.0

    @property
    def known(self) -> bool:
        """Whether there is any value."""
        return bool(self._recent)

    def add(self, value: float, weight: int = 1) -> None:
        """Adds the newest value, which counts `weight` times."""
        self._recent.append((value, weight))
        half = sum(weight for _, weight in self._recent) / 2
        for value, weight in sorted(self._recent):
            half -= weight
            if half <= 0:
                self.value = value
                return
