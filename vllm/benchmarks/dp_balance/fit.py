# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Fits the cost model to measured steps, and says how sure each constant is.

The model is linear once it is known which rank is the slowest in each step, and the
slowest ranks follow from the constants: the two are computed in turn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cost import CostModel
from .steps import StepSample

Array = NDArray[np.float64]

ROUNDS = 50
"""Of choosing the slowest ranks and fitting; it settles in a few."""
HUBER = 1.345
"""Residuals beyond so many deviations count less (95 % efficient without outliers)."""
Z95 = 1.96
"""Half width of a 95 % interval, in standard errors."""
PHI_TOLERANCE = 0.1
"""A share known no better than this is no knowledge."""
RELATIVE_TOLERANCE = 0.1
"""A constant known to this share of itself is identified."""
STEP_TOLERANCE = 0.02
"""So is one whose uncertainty is this share of a step."""

COLUMNS = ("t0", "a", "own", "shared", "c")
"""Regressors: 1, the slowest rank's decodes and prompt tokens, the mean of the ranks'
prompt tokens, and whether any rank prefilled. own = (1 − phi)·b, shared = phi·b."""


@dataclass(frozen=True)
class Estimate:
    """A fitted constant."""

    value: float
    half_width: float
    """Of the 95 % interval."""
    note: str = ""
    """Why the data cannot tell it, and what was assumed; empty if it can."""


@dataclass(frozen=True)
class Fit:
    """The cost model that fits best."""

    t0: Estimate
    a: Estimate
    b: Estimate
    c: Estimate
    phi: Estimate
    steps: int
    residual: float
    """Standard deviation of measured less fitted, as a share of the mean step."""
    host_seconds: float
    """Time between two steps that is in no step, as measured."""

    @property
    def cost(self) -> CostModel:
        """As used by the simulator: its steps follow on each other without a gap."""
        return CostModel(
            t0=self.t0.value + self.host_seconds,
            a=self.a.value,
            b=self.b.value,
            c=self.c.value,
            phi=self.phi.value,
        )


NOTES = {
    "shared": "the ranks' shares of prefill hardly vary between steps; taken as 0, so "
    "b holds for steps like these",
    "c": "the prompt tokens of prefilling steps hardly vary; taken as 0, its cost is "
    "in b",
    "a": "the number of decodes hardly varies; taken as 0, its cost is in t0",
    "own": "too few steps prefill; taken as 0",
}


def fit(samples: Sequence[StepSample], host_seconds: float = 0.0) -> Fit:
    """Fits the model.

    Args:
        samples: measured steps; at least some dozens.
        host_seconds: mean time between two steps.
    """
    seconds = np.array([sample.seconds for sample in samples])
    prefill = np.array([sample.prefill for sample in samples])
    decodes = np.array([sample.decodes for sample in samples])
    notes: dict[str, str] = {}
    active = list(COLUMNS)
    while True:
        solution = _Solution(seconds, prefill, decodes, active)
        worst = solution.least_known()
        if worst is None:
            break
        active.remove(worst)
        notes[worst] = NOTES[worst]
    own, shared = solution.value("own"), solution.value("shared")
    return Fit(
        t0=solution.estimate("t0", notes),
        a=solution.estimate("a", notes),
        b=Estimate(own + shared, Z95 * solution.error_of_sum(), notes.get("own", "")),
        c=solution.estimate("c", notes),
        phi=Estimate(
            shared / (own + shared) if own + shared else 0.0,
            Z95 * solution.error_of_phi(),
            notes.get("shared", ""),
        ),
        steps=len(samples),
        residual=solution.residual / float(seconds.mean()),
        host_seconds=host_seconds,
    )


class _Solution:
    """The best constants among those that are active; the others are 0."""

    def __init__(
        self, seconds: Array, prefill: Array, decodes: Array, active: Sequence[str]
    ) -> None:
        self._step = float(seconds.mean())
        theta = dict.fromkeys(COLUMNS, 0.0) | {"own": 1.0, "a": 1e-6}
        slowest = None
        for _ in range(ROUNDS):
            load = theta["a"] * decodes + theta["own"] * prefill
            previous, slowest = slowest, load.argmax(axis=1)
            if previous is not None and (previous == slowest).all():
                break
            rows = np.arange(len(seconds))
            table = {
                "t0": np.ones(len(seconds)),
                "a": decodes[rows, slowest],
                "own": prefill[rows, slowest],
                "shared": prefill.mean(axis=1),
                "c": (prefill.max(axis=1) > 0).astype(float),
            }
            names = [name for name in active if table[name].any()]
            theta = dict.fromkeys(COLUMNS, 0.0) | self._regress(table, names, seconds)
        self._theta = theta

    def _regress(
        self, table: dict[str, Array], names: list[str], seconds: Array
    ) -> dict[str, float]:
        """Robust least squares of the named columns with coefficients of 0 or more."""
        while True:
            self._scale = {name: float(table[name].max()) for name in names}
            x = np.column_stack([table[name] / self._scale[name] for name in names])
            weights = np.ones(len(seconds))
            for _ in range(10):
                beta = np.linalg.lstsq(
                    x * np.sqrt(weights)[:, None],
                    seconds * np.sqrt(weights),
                    rcond=1e-12,
                )[0]
                errors = seconds - x @ beta
                spread = 1.4826 * float(np.median(np.abs(errors))) or 1e-12
                weights = np.minimum(1, HUBER * spread / np.maximum(abs(errors), 1e-15))
            negative = [i for i, name in enumerate(names) if beta[i] < 0]
            if not negative:
                break
            names = [n for i, n in enumerate(names) if i != min(negative)]
        self.residual = float(np.sqrt(np.average(errors**2, weights=weights)))
        weighted = x * weights[:, None]
        normal = weighted.T @ x
        inverse = np.linalg.pinv(normal, rcond=1e-14)
        # Long steps vary more than short ones: the sandwich estimator allows for it.
        scores = weighted * errors[:, None]
        self._names = names
        self._covariance = inverse @ (scores.T @ scores) @ inverse
        # A pseudo-inverse hides collinear columns: their error is infinite.
        vectors = np.linalg.svd(normal)
        for value, vector in zip(vectors.S, vectors.Vh, strict=True):
            if value < 1e-10 * vectors.S[0]:
                involved = np.flatnonzero(abs(vector) > 1e-3)
                self._covariance[involved, involved] = np.inf
        return {
            name: float(value) / self._scale[name]
            for name, value in zip(names, beta, strict=True)
        }

    def value(self, name: str) -> float:
        """The constant, in its own unit."""
        return self._theta[name]

    def _error(self, name: str) -> float:
        """Standard error of a constant, in its own unit; 0 if it is not active."""
        if name not in self._names:
            return 0.0
        i = self._names.index(name)
        return float(np.sqrt(self._covariance[i, i])) / self._scale[name]

    def estimate(self, name: str, notes: dict[str, str]) -> Estimate:
        """The constant with its interval."""
        note = notes.get(name, "" if name in self._names else "fits best as 0")
        return Estimate(self.value(name), Z95 * self._error(name), note)

    def _own_and_shared(self) -> Array:
        """Covariance of own and shared, in their own unit."""
        covariance = np.zeros((2, 2))
        for i, first in enumerate(("own", "shared")):
            for j, second in enumerate(("own", "shared")):
                if first in self._names and second in self._names:
                    at = self._names.index(first), self._names.index(second)
                    scale = self._scale[first] * self._scale[second]
                    covariance[i, j] = self._covariance[at] / scale
        return covariance

    def error_of_sum(self) -> float:
        """Standard error of b = own + shared."""
        return math.sqrt(max(0.0, float(self._own_and_shared().sum())))

    def error_of_phi(self) -> float:
        """Standard error of phi = shared / (own + shared)."""
        own, shared = self.value("own"), self.value("shared")
        if not own + shared:
            return 0.0
        covariance = self._own_and_shared()
        if not np.isfinite(covariance).all():
            return math.inf
        gradient = np.array([-shared, own]) / (own + shared) ** 2
        return math.sqrt(max(0.0, float(gradient @ covariance @ gradient)))

    def least_known(self) -> str | None:
        """The constant to give up because the data cannot tell it; None if none."""
        if "shared" in self._names and Z95 * self.error_of_phi() > PHI_TOLERANCE:
            return "shared"
        for name in ("c", "a", "own"):
            half_width = Z95 * self._error(name)
            if (
                name in self._names
                and half_width > RELATIVE_TOLERANCE * self.value(name)
                and half_width * self._scale[name] > STEP_TOLERANCE * self._step
            ):
                return name
        return None
