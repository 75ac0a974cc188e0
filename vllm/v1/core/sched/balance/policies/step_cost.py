# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Learns from step times what a prefill costs the ranks that step in lock step."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class StepCost(NamedTuple):
    """The model of a step's duration, in seconds.

    ``step = decode
    + [any prefill] * (fixed + own * most + shared * mean + padding * most * idle)``

    where `most` and `mean` are the prompt tokens of the fullest and of the mean rank,
    as shares of the largest step (`max_num_batched_tokens`), and `idle` is the share of
    the ranks that have none. Only `fixed`, `own` and `padding` can be wasted: they are
    paid by all ranks for the prefill of one. `shared` is what the ranks pay together
    anyway (the experts of a MoE layer are spread over them).
    """

    decode: float
    """A step without any prefill."""
    fixed: float
    """Added if any rank prefills, however little."""
    own: float
    """Added for a full step of prompt tokens on the fullest rank."""
    shared: float
    """Added for a full step of prompt tokens on every rank."""
    padding: float = 0.0
    """Added for a full step of rows that nobody needs on every rank: where the
    all-to-all is padded, ranks without prefill compute as many as the fullest has."""

    def waste(self, most: float, mean: float, idle: float) -> float:
        """Seconds of a prefill step that better balance would have saved.

        The part of `own` that the fullest rank has over the mean, of `fixed` the part
        that the step leaves unused, and the padding:
        ``own * (most - mean) + fixed * (1 - mean) + padding * most * idle``.
        """
        unused = self.own * (most - mean) + self.fixed * (1 - mean)
        return unused + self.padding * most * idle

    def prefill_seconds(self, most: float, mean: float, idle: float) -> float:
        """Seconds by which prefill lengthens a step."""
        together = self.shared * mean + self.padding * most * idle
        return self.fixed + self.own * most + together


_DECODE_WEIGHT = 0.05
"""Weight of the newest decode step in the mean decode time."""
_DEVIATIONS = (1.0, 30.0, 20.0, 20.0)
"""Prior standard deviations of the states, in decode steps."""
_STATES = range(len(_DEVIATIONS))
_DRIFT = 4e-6
"""Variance that a step adds, as a share of the prior's: costs may change slowly."""
_NOISE = (0.1, 0.05)
"""Standard deviation of a step time, as shares of the step and of a decode step."""


class CostLearner:
    """Fits `StepCost` by a Kalman filter of four states, each kept within bounds.

    The state ``x = (fixed, own, shared, padding)`` is observed through every step with
    a prefill as ``step - decode = h . x`` with ``h = (1, most, mean, most * idle)``.
    While one rank alone prefills, `own` and `padding` cannot be told apart, and need
    not be: their waste is the same then. Fits through the origin, and least squares
    without a prior, were tried and fail: loads of a steady traffic are so alike that
    `fixed` and `own` cannot be told apart at first.
    """

    def __init__(self) -> None:
        self._decode: float | None = None
        self._state = (0.0,) * len(_DEVIATIONS)
        self._covariance: list[list[float]] | None = None

    @property
    def cost(self) -> StepCost | None:
        """What is known, or None before the first step without prefill."""
        return None if self._decode is None else StepCost(self._decode, *self._state)

    def observe(self, seconds: float, most: float, mean: float, idle: float) -> None:
        """Learns from one step.

        Args:
            seconds: its duration.
            most: prompt tokens of the fullest rank, as a share of the largest step.
            mean: the same of the mean rank.
            idle: share of the ranks that have no prompt tokens.
        """
        if most > 0:
            if self._decode is not None:
                self._observe_prefill(
                    seconds, self._decode, (1.0, most, mean, most * idle)
                )
        elif self._decode is None:
            self._decode = seconds
        else:
            self._decode += _DECODE_WEIGHT * (seconds - self._decode)

    def _observe_prefill(
        self, seconds: float, decode: float, load: tuple[float, ...]
    ) -> None:
        prior = [(deviation * decode) ** 2 for deviation in _DEVIATIONS]
        if self._covariance is None:
            self._covariance = [
                [variance if i == j else 0.0 for j in _STATES]
                for i, variance in enumerate(prior)
            ]
        covariance = self._covariance
        for i, variance in enumerate(prior):
            covariance[i][i] = min(covariance[i][i] + _DRIFT * variance, variance)
        gain = [
            sum(c * share for c, share in zip(row, load, strict=True))
            for row in covariance
        ]
        noise = (_NOISE[0] * seconds) ** 2 + (_NOISE[1] * decode) ** 2
        variance = sum(g * share for g, share in zip(gain, load, strict=True)) + noise
        expected = sum(x * share for x, share in zip(self._state, load, strict=True))
        error = (seconds - decode - expected) / variance
        state = [x + g * error for x, g in zip(self._state, gain, strict=True)]
        for i in _STATES:
            for j in _STATES:
                covariance[i][j] -= gain[i] * gain[j] / variance
        # A launch or a graph break costs at most about one decode step.
        self._state = _within_bounds(state, covariance, (decode, *[math.inf] * 3))


def _within_bounds(
    state: list[float], covariance: list[list[float]], highest: Sequence[float]
) -> tuple[float, ...]:
    """Moves a state into its bounds, and the others as they are correlated with it.

    The nearest admissible state in the metric of the covariance. Clamping each state by
    itself can diverge: if one is held at 0, an error that it should have taken drives
    another away, without end where times are not linear in tokens.

    Args:
        state: the states; their lowest value is 0.
        covariance: theirs.
        highest: the largest value of each.
    """
    for _ in state:  # one bound at a time; moving to it may pass another
        outside = [
            (j, bound)
            for j, (x, top) in enumerate(zip(state, highest, strict=True))
            if (bound := min(max(x, 0.0), top)) != x and covariance[j][j] > 0
        ]
        if not outside:
            break
        j, bound = outside[0]
        step = (state[j] - bound) / covariance[j][j]
        state = [x - covariance[i][j] * step for i, x in enumerate(state)]
        state[j] = bound
    return tuple(min(max(x, 0.0), top) for x, top in zip(state, highest, strict=True))
