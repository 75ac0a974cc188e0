# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Least squares with outliers and constants of 0 or more, for `fit`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .steps import StepSample

Array = NDArray[np.float64]

ROUNDS = 50
"""Of choosing the slowest ranks and fitting; it settles in a few."""
HUBER = 1.345
"""Residuals beyond so many deviations count less (95 % efficient without outliers)."""
FLOOR, RELATIVE = 0.1, 0.02
"""Expected error of a time: a share of the mean step, and a share of the time."""
LEAST_SPREAD = 0.05
"""Of errors over expected errors: less is no reason to call a step an outlier."""
EXPERTS_TOKENS = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""What is tried for `CostModel.experts_tokens`."""

COLUMNS = ("t0", "a", "own", "shared", "c", "context", "attention", "experts")
"""Regressors: 1, the slowest rank's decodes and prompt tokens, the mean of the ranks'
prompt tokens, whether any rank prefilled, what the slowest rank's decodes and its
prompt tokens attend to, and the share of the experts that is read. own = (1 - phi)·b,
shared = phi·b."""


@dataclass(frozen=True)
class Samples:
    """The samples as arrays: a row per step, a column per rank."""

    seconds: Array
    """Of every measured interval."""
    starts: NDArray[np.int64]
    """Number of the first step of every interval."""
    prefill: Array
    decodes: Array
    context: Array
    attended: Array

    @classmethod
    def of(cls, samples: Sequence[StepSample]) -> "Samples":
        """Gathers the steps; those after the last interval that ends are left out."""
        ends = [i for i, sample in enumerate(samples) if sample.ends_interval]
        used = samples[: ends[-1] + 1]
        zeros = (0.0,) * len(used[0].prefill)
        return cls(
            np.array([samples[end].seconds for end in ends]),
            np.array([0, *(end + 1 for end in ends[:-1])]),
            np.array([sample.prefill for sample in used], dtype=float),
            np.array([sample.decodes for sample in used], dtype=float),
            np.array([sample.context or zeros for sample in used], dtype=float),
            np.array([sample.attended or zeros for sample in used], dtype=float),
        )

    @property
    def intervals(self) -> int:
        """How many times were measured."""
        return len(self.seconds)

    @property
    def mean_step(self) -> float:
        """Seconds."""
        return float(self.seconds.sum()) / len(self.prefill)

    def has(self, name: str) -> bool:
        """Whether a column of `COLUMNS` is not all zeros."""
        if name == "context":
            return bool(self.context.any())
        return name != "attention" or bool(self.attended.any())


def nonnegative(x: Array, y: Array) -> Array:
    """Least squares with coefficients of 0 or more (Lawson and Hanson)."""
    beta = np.zeros(x.shape[1])
    active: list[int] = []
    for _ in range(10 * len(beta)):
        gradient = x.T @ (y - x @ beta)
        gradient[active] = -np.inf
        best = int(gradient.argmax())
        if not gradient[best] > 1e-10 * float(abs(x.T @ y).max()):
            break
        active.append(best)
        while True:
            solved = np.linalg.lstsq(x[:, active], y, rcond=1e-12)[0]
            if (solved > 0).all():
                break
            old = beta[active]
            down = np.flatnonzero(solved <= 0)
            # As far as to the first bound; what reaches it is given up.
            shares = old[down] / np.maximum(old[down] - solved[down], 1e-300)
            stopped = int(down[shares.argmin()])
            moved = old + shares.min() * (solved - old)
            beta[:] = 0.0
            kept = [i for i in range(len(active)) if i != stopped and moved[i] > 0]
            beta[[active[i] for i in kept]] = moved[kept]
            active = [active[i] for i in kept]
            if not active:
                return beta
        beta[:] = 0.0
        beta[active] = solved
    return beta


class Regression:
    """The best constants among those that are active; the others are 0."""

    def __init__(
        self,
        data: Samples,
        active: Sequence[str],
        experts_tokens: float,
        phi: float | None = None,
    ) -> None:
        """Fits.

        Args:
            data: what was measured.
            active: names of `COLUMNS`.
            experts_tokens: as in `CostModel`.
            phi: holds the share fixed, if given.
        """
        self.experts_tokens = experts_tokens
        self._data = data
        self._fixed_phi = phi
        if phi is not None:
            active = [name for name in active if name != "shared"]
        theta = dict.fromkeys(COLUMNS, 0.0) | {"own": 1.0, "a": 1e-6}
        slowest = None
        for _ in range(ROUNDS):
            load = (
                theta["a"] * data.decodes
                + theta["own"] * data.prefill
                + theta["context"] * data.context
                + theta["attention"] * data.attended
            )
            previous, slowest = slowest, load.argmax(axis=1)
            if previous is not None and (previous == slowest).all():
                break
            table = self._table(slowest)
            names = [name for name in active if table[name].any()]
            theta = dict.fromkeys(COLUMNS, 0.0) | self._regress(table, names)
            if phi is not None:
                theta["own"], theta["shared"] = (
                    theta["own"] * (1 - phi), theta["own"] * phi
                )  # fmt: skip
        self._theta = theta

    def _table(self, slowest: NDArray[np.intp]) -> dict[str, Array]:
        """The regressors, summed over the steps of each interval."""
        data = self._data
        rows = np.arange(len(slowest))
        mean = data.prefill.mean(axis=1)
        own = data.prefill[rows, slowest]
        if (phi := self._fixed_phi) is not None:
            own = (1 - phi) * own + phi * mean
        tokens = (data.prefill + data.decodes).sum(axis=1)
        table = {
            "t0": np.ones(len(slowest)),
            "a": data.decodes[rows, slowest],
            "own": own,
            "shared": mean,
            "c": (data.prefill.max(axis=1) > 0).astype(float),
            "context": data.context[rows, slowest],
            "attention": data.attended[rows, slowest],
            "experts": -np.expm1(-tokens / self.experts_tokens),
        }
        return {
            name: np.add.reduceat(column, data.starts) for name, column in table.items()
        }

    def _regress(self, table: dict[str, Array], names: list[str]) -> dict[str, float]:
        """Robust least squares of the named columns with coefficients of 0 or more."""
        seconds = self._data.seconds
        self.names = names
        self._scale = {name: float(table[name].max()) for name in names}
        x = np.column_stack([table[name] / self._scale[name] for name in names])
        # What is not modelled grows with the time, above the jitter of a step.
        expected = FLOOR * self._data.mean_step + RELATIVE * seconds
        weights = 1 / expected
        for _ in range(10):
            beta = nonnegative(x * weights[:, None], seconds * weights)
            errors = seconds - x @ beta
            sizes = abs(errors) / expected
            spread = max(LEAST_SPREAD, 1.4826 * float(np.median(sizes)))
            outlying = np.minimum(1, HUBER * spread / np.maximum(sizes, 1e-15))
            weights = np.sqrt(outlying) / expected
        weights = weights**2
        self.residual = float(np.sqrt(np.average(errors**2, weights=weights)))
        # A constant at its bound of 0 is not free.
        free = [i for i, value in enumerate(beta) if value > 0]
        self.names, beta, x = [names[i] for i in free], beta[free], x[:, free]
        weighted = x * weights[:, None]
        normal = weighted.T @ x
        inverse = np.linalg.pinv(normal, rcond=1e-14)
        # Long steps vary more than short ones: the sandwich estimator allows for it.
        scores = weighted * errors[:, None]
        self._covariance = inverse @ (scores.T @ scores) @ inverse
        # A pseudo-inverse hides collinear columns: their error is infinite.
        vectors = np.linalg.svd(normal)
        for value, vector in zip(vectors.S, vectors.Vh, strict=True):
            if value < 1e-10 * vectors.S[0]:
                involved = np.flatnonzero(abs(vector) > 1e-3)
                self._covariance[involved, involved] = np.inf
        return {
            name: float(value) / self._scale[name]
            for name, value in zip(self.names, beta, strict=True)
        }

    def value(self, name: str) -> float:
        """The constant, in its own unit."""
        return self._theta[name]

    def scale(self, name: str) -> float:
        """The greatest value of its column."""
        return self._scale[name]

    def error(self, name: str) -> float:
        """Standard error of a constant, in its own unit; 0 if it is not active."""
        if name not in self.names:
            return 0.0
        i = self.names.index(name)
        return float(np.sqrt(self._covariance[i, i])) / self._scale[name]

    def _own_and_shared(self) -> Array:
        """Covariance of own and shared, in their own unit."""
        covariance = np.zeros((2, 2))
        for i, first in enumerate(("own", "shared")):
            for j, second in enumerate(("own", "shared")):
                if first in self.names and second in self.names:
                    at = self.names.index(first), self.names.index(second)
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
