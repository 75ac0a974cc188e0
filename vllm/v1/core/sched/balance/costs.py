# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Learns from step times what a prefill costs the ranks that step in lock step."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class StepCost(NamedTuple):
    """The model of a step's duration, in seconds.

    ``step = decode + [any prefill] * (fixed + own * most + shared * mean)``

    where `most` and `mean` are the prompt tokens of the fullest and of the mean rank,
    as shares of the largest step (`max_num_batched_tokens`). Only `fixed` and `own`
    can be wasted: they are paid by all ranks for the prefill of one. `shared` is what
    the ranks pay together anyway (the experts of a MoE layer are spread over them).
    """

    decode: float
    """A step without any prefill."""
    fixed: float
    """Added if any rank prefills, however little."""
    own: float
    """Added for a full step of prompt tokens on the fullest rank."""
    shared: float
    """Added for a full step of prompt tokens on every rank."""

    def waste(self, most: float, mean: float) -> float:
        """Seconds of a prefill step that better balance would have saved.

        The part of `own` that the fullest rank has over the mean, and of `fixed` the
        part that the step leaves unused: ``own * (most - mean) + fixed * (1 - mean)``.
        """
        return self.own * (most - mean) + self.fixed * (1 - mean)


_DECODE_WEIGHT = 0.05
"""Weight of the newest decode step in the mean decode time."""
_DEVIATIONS = (1.0, 30.0, 20.0)
"""Prior standard deviations of `fixed`, `own` and `shared`, in decode steps."""
_DRIFT = 4e-6
"""Variance that a step adds, as a share of the prior's: costs may change slowly."""
_NOISE = (0.1, 0.05)
"""Standard deviation of a step time, as shares of the step and of a decode step."""


class CostLearner:
    """Fits `StepCost` by a Kalman filter of three states, each kept within bounds.

    The state ``x = (fixed, own, shared)`` is observed through every step with a
    prefill as ``step - decode = h . x`` with ``h = (1, most, mean)``. Fits through the
    origin, and least squares without a prior, were tried and fail: loads of a steady
    traffic are so alike that `fixed` and `own` cannot be told apart at first.
    """

    def __init__(self) -> None:
        self._decode: float | None = None
        self._state = (0.0, 0.0, 0.0)
        self._covariance: list[list[float]] | None = None

    @property
    def cost(self) -> StepCost | None:
        """What is known, or None before the first step without prefill."""
        return None if self._decode is None else StepCost(self._decode, *self._state)

    def observe(self, seconds: float, most: float, mean: float) -> None:
        """Learns from one step.

        Args:
            seconds: its duration.
            most: prompt tokens of the fullest rank, as a share of the largest step.
            mean: the same of the mean rank.
        """
        if most > 0:
            if self._decode is not None:
                self._observe_prefill(seconds, self._decode, (1.0, most, mean))
        elif self._decode is None:
            self._decode = seconds
        else:
            self._decode += _DECODE_WEIGHT * (seconds - self._decode)

    def _observe_prefill(
        self, seconds: float, decode: float, load: tuple[float, float, float]
    ) -> None:
        prior = [(deviation * decode) ** 2 for deviation in _DEVIATIONS]
        if self._covariance is None:
            self._covariance = [
                [variance if i == j else 0.0 for j in range(3)]
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
        for i in range(3):
            for j in range(3):
                covariance[i][j] -= gain[i] * gain[j] / variance
        # A launch or a graph break costs at most about one decode step.
        self._state = _within_bounds(state, covariance, (decode, math.inf, math.inf))


def _within_bounds(
    state: list[float], covariance: list[list[float]], highest: Sequence[float]
) -> tuple[float, float, float]:
    """Moves a state into its bounds, and the others as they are correlated with it.

    The nearest admissible state in the metric of the covariance. Clamping each state by
    itself can diverge: if one is held at 0, an error that it should have taken drives
    another away, without end where times are not linear in tokens.

    Args:
        state: the three states; their lowest value is 0.
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
    fixed, own, shared = (
        min(max(x, 0.0), top) for x, top in zip(state, highest, strict=True)
    )
    return fixed, own, shared
