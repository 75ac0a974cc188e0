# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Bounds what holds can cost, by what was measured alone."""

import math
from collections import deque
from collections.abc import Iterable

from .attention_cost import whole_step
from .decision import Decision, Policy
from .hold_bound import BOUND_REACHED, MAX_HOLD_STEPS, HoldBound
from .rows import SECONDS, Snapshot

LOSING = "losing"
"""The reason while holds have cost more than they may."""

_ALLOWED = 0.01
"""Share of the time that holds may cost without saving it: what a mean may lose in a
world that was not foreseen."""
_RECENT = 31
"""Steps that a median is of: a few slow ones do not move it."""


class LossGuard(HoldBound):
    """A policy whose holds are bounded in time as well, and by what they save.

    Both bounds count *heads*: the ranks, and whom a hold delays, those that are pending
    and those that wait for a slot behind them. How many requests decode does not
    matter, so nobody is held longer for the sake of a stranger's.

    **In time.** A hold lets prefills of several ranks share steps that they would have
    taken one after another, and a prefill delays all by one such step. No request is
    held longer than ``prefill * heads`` seconds, with the median duration of the recent
    steps with a prefill. A step with a budget counts by the share of a whole one that
    it withholds: where prompts of many steps queue, a request waits for those before
    it, and not for a hold. At the bound, all ranks schedule one step as if there were
    no balance scheduling, and holds are counted anew, as after every such step.

    **By what they save.** The policy has a credit of seconds. A hold takes its time
    from it, by the share of the heads that it delays; what releases save is added, and
    1 % of the time. When it is used up, all ranks schedule as if there were no balance
    scheduling, until there is some again. So all holds together cost a head at most
    what they saved, one percent more, and the credit of the beginning: ``ranks *
    prefill`` seconds, which is the most that the credit can be.

    A release that lengthens a step by E for prompts of t_r tokens has saved
    ``rate * sum(t_r) - E`` seconds, if that is positive. The rate is that of the lone
    prefills measured lately (median of their tokens), but at most ``E / max(t_r)``: the
    same step without the other ranks' prompts would not have been longer.
    """

    def __init__(self, policy: Policy, max_hold_steps: int = MAX_HOLD_STEPS) -> None:
        super().__init__(policy, max_hold_steps)
        self._withheld = 0.0
        """Share of a step's prompt tokens that the last decision kept back."""
        self._held = deque([0.0], maxlen=max_hold_steps + 1)
        """Seconds that were kept back until the ends of the last steps."""
        self._decode, self._prefill = _Median(), _Median()
        self._lone_rate = _Median()
        self._credit = float("inf")
        self._losing = False
        self._delayed = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        """The policy's decision, or a release.

        The policy sees every snapshot, also those that it does not decide on.
        """
        decision = super().decide(snapshot)
        requests = sum(snapshot.running) + sum(snapshot.waiting)
        delayed = _delayed(snapshot)
        heads = min(requests, len(snapshot.running) + delayed)
        self._account(snapshot, heads)
        if self._is_held_too_long(max(snapshot.held_steps), heads):
            decision = decision.opened(BOUND_REACHED)
        elif self._losing:
            decision = decision.opened(LOSING)
        if decision.prefill_budget is None:
            self._held.clear()  # who waits then waits for those before it
            self._held.append(0.0)
        self._delayed = 0.0 if decision.admit else delayed
        self._withheld = _withheld(decision, snapshot)
        return decision

    def reset(self) -> None:
        """Resets the policy; what was measured stays."""
        super().reset()
        self._delayed = 0.0

    def _usual(self) -> float:
        """Seconds of a recent step with a prefill; of any, if there was none."""
        return self._prefill.value or self._decode.value

    def _is_held_too_long(self, steps: int, heads: float) -> bool:
        if not steps:
            return False
        before = self._held[-1 - min(steps, len(self._held) - 1)]
        bound = heads * self._usual()
        return bool(bound) and self._held[-1] - before >= bound

    def _account(self, snapshot: Snapshot, heads: float) -> None:
        """Adds the step that has ended to what is measured, and to the credit."""
        seconds = max(snapshot.step_time_us) * SECONDS
        self._held.append(self._held[-1] + seconds * self._withheld)
        if not seconds:  # the first step of a wave
            return
        saved = self._saved(snapshot.prefill_tokens, seconds)
        usual = self._usual()
        # A pause of the device is not the hold's fault.
        lost = self._delayed * min(seconds, usual)
        most = len(snapshot.running) * usual
        credit = self._credit + saved - lost / max(1, heads) + _ALLOWED * seconds
        self._credit = max(-most, min(credit, most))
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
    """Requests that a hold delays, as if each were delayed by all of it.

    Those that are pending, and where all slots are taken those that wait for theirs.
    """
    return math.fsum(
        [
            n if running + waiting <= slots else n * (running + waiting) / max(1, slots)
            for n, running, waiting, slots in zip(
                snapshot.pending,
                snapshot.running,
                snapshot.waiting,
                snapshot.max_running,
                strict=True,
            )
            if n
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
