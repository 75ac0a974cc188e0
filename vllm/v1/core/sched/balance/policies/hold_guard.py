# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Bounds what holds can cost, by what was measured alone."""

from collections import deque
from collections.abc import Iterable

from .decision import OPEN, Decision, Learned, Policy
from .max_hold_steps import BOUND_REACHED
from .rows import Snapshot

LOSING = OPEN._replace(reason="losing")

_LONGEST = 32
"""Steps with a prefill that could be made one after another while a request is held."""
_LATE, _LATE_SECONDS = 1.5, 2.0
"""How much longer than most a request may be pending: a factor, and seconds more."""
_AGES, _LATER = 100, 5
"""Ages that are compared, and how many of them may be higher."""
_ARRIVALS, _QUIET = 30, 5
"""Times between arrivals that a mean is of; after how many of it none is expected."""
_ALLOWED = 0.01
"""Share of all time in the ranks that holds may cost without saving it."""
_REMEMBERED = 1001
"""Ends of steps; `HoldBound` ends longer holds."""
_RECENT = 31
"""Steps that a median is of."""
_SECONDS = 1e-6
"""The microseconds of a row in seconds."""


class Guard:
    """A policy whose holds are bounded, whatever it decides and has learned.

    **In time.** A hold lets prefills of several ranks share steps that they would have
    taken one after another, and a prefill delays every request by one such step. No
    request is held longer than ``prefill * min(requests, 32)`` seconds, with the median
    duration of the recent steps with a prefill. A step with a budget counts by the
    share of a whole one that it withholds: where prompts of many steps queue, a request
    waits for those before it, and not for a hold. At the bound, all ranks schedule one
    step as if there were no balance scheduling.

    **While others come.** They do so as well while a request is pending for ``1.5 * p95
    + 2`` seconds or longer and nothing joins it: no work has come for five times the
    mean time between the last 30 arrivals. p95 is of how long the last hundred were
    pending of those who were the oldest of their rank. A prompt of many steps is held
    before each of them; this ends once all that the holds save is others' time.

    **By what they save.** The policy has a credit of person-seconds. The time by which
    holds delay requests is taken from it; what releases save is added, and 1 % of the
    time that all requests spend in the ranks. When it is used up, all ranks schedule as
    if there were no balance scheduling, until half of it is there again. So all holds
    together cost at most what they saved, one percent more, and the credit of the
    beginning: a wait of ``ranks * prefill`` seconds for everybody, which is the most
    that the credit can be.

    A release that lengthens a step by E for prompts of t_r tokens has saved
    ``rate * sum(t_r) - E`` for all requests in the ranks, if that is positive. The rate
    is that of the lone prefills measured lately (median), but at most ``E / max(t_r)``:
    the same step without the other ranks' prompts would not have been longer.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._ended = 0.0
        """When the last step ended, in seconds."""
        self._withheld = 0.0
        """Share of a step's prompt tokens that the last decision kept back."""
        self._held = deque([0.0], maxlen=_REMEMBERED)
        """Seconds that were kept back until the ends of the last steps."""
        self._decode, self._prefill = _Median(), _Median()
        self._lone_rate = _Median()
        self._credit = float("inf")
        self._losing = False
        self._delayed = 0.0
        self._ages = deque([0.0], maxlen=_AGES)
        """For how long those were pending who were the oldest of their rank."""
        self._arrivals = deque([0.0], maxlen=_ARRIVALS + 1)
        """When steps ended in which work came, in seconds."""
        self._before: Snapshot | None = None

    @property
    def learned(self) -> Learned | None:
        """What the policy knows of the device."""
        return self._policy.learned

    def decide(self, snapshot: Snapshot) -> Decision:
        """The policy's decision, or a release.

        The policy sees every snapshot, also those that it does not decide on.
        """
        decision = self._policy.decide(snapshot)
        requests = sum(snapshot.running) + sum(snapshot.waiting)
        self._account(snapshot, requests)
        self._watch(snapshot)
        is_open = decision.prefill_budget is None
        if self._is_held_too_long(max(snapshot.held_steps), requests) or (
            not is_open and self._is_late(snapshot)
        ):
            decision = BOUND_REACHED._replace(attention=decision.attention)
        elif self._losing:
            decision = LOSING._replace(attention=decision.attention)
        self._delayed = 0.0 if decision.admit else _delayed(snapshot)
        self._withheld = _withheld(decision, snapshot)
        return decision

    def reset(self) -> None:
        """Resets the policy; what was measured stays."""
        self._policy.reset()
        self._delayed = 0.0

    def _watch(self, snapshot: Snapshot) -> None:
        """Notes arrivals, and for how long those were pending whose turn is over."""
        before, self._before = self._before, snapshot
        if before is None or len(before.running) != len(snapshot.running):
            return
        self._ages.extend(
            old * _SECONDS
            for old, new in zip(
                before.pending_age_us, snapshot.pending_age_us, strict=True
            )
            if new < old
        )
        work = zip(
            before.pending_tokens,
            snapshot.pending_tokens,
            snapshot.prefill_tokens,
            strict=True,
        )
        if any(new > old - prefilled for old, new, prefilled in work):
            self._arrivals.append(self._ended)

    def _is_late(self, snapshot: Snapshot) -> bool:
        """Whether a request is pending for longer than most were, and none joins it."""
        times = self._arrivals
        gap = (times[-1] - times[0]) / max(1, len(times) - 1)
        if self._ended - times[-1] < _QUIET * gap:
            return False
        most = sorted(self._ages)[-1 - _LATER * len(self._ages) // _AGES]
        return max(snapshot.pending_age_us) * _SECONDS >= _LATE * most + _LATE_SECONDS

    def _usual(self) -> float:
        """Seconds of a recent step with a prefill; of any, if there was none."""
        return self._prefill.value or self._decode.value

    def _is_held_too_long(self, steps: int, requests: int) -> bool:
        if not steps:
            return False
        before = self._held[-1 - min(steps, len(self._held) - 1)]
        bound = min(requests, _LONGEST) * self._usual()
        return bool(bound) and self._held[-1] - before >= bound

    def _account(self, snapshot: Snapshot, requests: int) -> None:
        """Adds the step that has ended to what is measured, and to the credit."""
        seconds = max(snapshot.step_time_us) * _SECONDS
        self._ended += seconds
        self._held.append(self._held[-1] + seconds * self._withheld)
        if not seconds:  # the first step of a wave
            return
        saved = self._saved(snapshot.prefill_tokens, seconds) * requests
        usual = self._usual()
        # A pause of the device is not the hold's fault.
        lost = self._delayed * min(seconds, usual)
        most = requests * len(snapshot.running) * usual
        credit = self._credit + saved - lost + _ALLOWED * requests * seconds
        self._credit = max(-most, min(credit, most))
        if self._credit < 0:
            self._losing = True
        elif self._credit >= most / 2:
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
            self._lone_rate.add(rate)
        if self._lone_rate.known:
            rate = min(rate, self._lone_rate.value)
        return max(0.0, rate * sum(tokens) - longer)


def _withheld(decision: Decision, snapshot: Snapshot) -> float:
    """Share of a whole step's prompt tokens that a decision keeps back."""
    budget = decision.prefill_budget
    if budget is None:
        return 0.0
    whole = max(1, max(snapshot.max_tokens) - max(snapshot.running))
    return 1 - min(1.0, budget / whole)


def _delayed(snapshot: Snapshot) -> float:
    """Requests that a hold delays, as if each were delayed by all of it.

    Those that are pending, and where all slots are taken those that wait for theirs.
    """
    return sum(
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
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self.value = 0.0

    @property
    def known(self) -> bool:
        """Whether there is any value."""
        return bool(self._recent)

    def add(self, value: float) -> None:
        """Adds the newest value."""
        self._recent.append(value)
        self.value = sorted(self._recent)[(len(self._recent) - 1) // 2]
