# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Least squares with outliers, for `fit`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .steps import StepSample

Array = NDArray[np.float64]

ROUNDS = 50
"""Of choosing the slowest ranks and fitting; it settles in a few."""
REWEIGHTED = 10
"""How often outliers are weighed anew."""
HUBER = 1.345
"""Standard deviations beyond which residuals count less (95 % efficient without
outliers)."""
FLOOR, RELATIVE = 0.1, 0.02
"""Expected error of a time: a share of the mean step, and a share of the time."""
LEAST_SPREAD = 0.05
"""Of errors over expected errors: less is no reason to call a step an outlier."""

COLUMNS = ("t0", "a", "b", "c", "experts")
"""Regressors, named as in `CostModel`: 1, the slowest rank's decodes, its prompt tokens
and, by phi, the mean of the ranks' prompt tokens, whether any rank prefilled, and the
share of the experts that is read."""


@dataclass(frozen=True)
class Samples:
    """The samples as arrays: a row per step, a column per rank."""

    seconds: Array
    """Of every measured interval."""
    starts: NDArray[np.int64]
    """Number of the first step of every interval."""
    prefill: Array
    decodes: Array

    @classmethod
    def of(cls, samples: Sequence[StepSample]) -> "Samples":
        """Gathers the steps; those after the last interval that ends are left out."""
        ends = [i for i, sample in enumerate(samples) if sample.ends_interval]
        used = samples[: ends[-1] + 1]
        return cls(
            np.array([samples[end].seconds for end in ends]),
            np.array([0, *(end + 1 for end in ends[:-1])]),
            np.array([sample.prefill for sample in used], dtype=float),
            np.array([sample.decodes for sample in used], dtype=float),
        )

    @property
    def mean_step(self) -> float:
        """Seconds."""
        return float(self.seconds.sum()) / len(self.prefill)

    def columns(
        self, slowest: NDArray[np.intp], phi: float, experts_tokens: float
    ) -> dict[str, Array]:
        """The regressors, summed over the steps of each interval."""
        rows = np.arange(len(slowest))
        mean = self.prefill.mean(axis=1)
        tokens = (self.prefill + self.decodes).sum(axis=1)
        columns = {
            "t0": np.ones(len(slowest)),
            "a": self.decodes[rows, slowest],
            "b": (1 - phi) * self.prefill[rows, slowest] + phi * mean,
            "c": (mean > 0).astype(float),
            "experts": -np.expm1(-tokens / experts_tokens),
        }
        return {
            name: np.add.reduceat(column, self.starts)
            for name, column in columns.items()
        }


class Solution(NamedTuple):
    """Constants, by their names in `COLUMNS`; 0 where nothing depends on one."""

    values: Mapping[str, float]
    errors: Mapping[str, float]
    """Standard errors for the phi that was given."""
    scales: Mapping[str, float]
    """The greatest values of the columns."""
    residual: float
    """Seconds."""
    unlikelihood: float
    """Logarithm of how unlikely the times are, as for Huber's M-estimator."""


def solve(
    data: Samples, names: Sequence[str], phi: float, experts_tokens: float
) -> Solution:
    """The constants of these names that fit best; the others are 0."""
    values: Mapping[str, float] = dict.fromkeys(COLUMNS, 0.0) | {"b": 1.0, "a": 1e-6}
    slowest = None
    for _ in range(ROUNDS):
        own = (1 - phi) * values["b"]
        load = values["a"] * data.decodes + own * data.prefill
        previous, slowest = slowest, load.argmax(axis=1)
        if previous is not None and (previous == slowest).all():
            break
        table = data.columns(slowest, phi, experts_tokens)
        found = _regress(data, {name: table[name] for name in names})
        values = found.values
    return found


def _regress(data: Samples, table: Mapping[str, Array]) -> Solution:
    """Robust least squares."""
    names = [name for name, column in table.items() if column.any()]
    scales = np.array([table[name].max() for name in names])
    x = np.column_stack([table[name] for name in names]) / scales
    # What is not modelled grows with the time, above the jitter of a step.
    expected = FLOOR * data.mean_step + RELATIVE * data.seconds
    weights = 1 / expected
    for _ in range(REWEIGHTED):
        weighted = x * weights[:, None]
        beta = np.linalg.lstsq(weighted, data.seconds * weights, rcond=1e-12)[0]
        errors = data.seconds - x @ beta
        sizes = abs(errors) / expected
        spread = max(LEAST_SPREAD, 1.4826 * float(np.median(sizes)))
        outlying = np.minimum(1, HUBER * spread / np.maximum(sizes, 1e-15))
        weights = np.sqrt(outlying) / expected
    weighted = x * weights[:, None] ** 2
    normal = weighted.T @ x
    inverse = np.linalg.pinv(normal, rcond=1e-14)
    # Long steps vary more than short ones: the sandwich estimator allows for it.
    scores = weighted * errors[:, None]
    variance = (inverse @ (scores.T @ scores) @ inverse).diagonal().copy()
    # A pseudo-inverse hides collinear columns: their error is infinite.
    vectors = np.linalg.svd(normal)
    for value, vector in zip(vectors.S, vectors.Vh, strict=True):
        if value < 1e-10 * vectors.S[0]:
            variance[abs(vector) > 1e-3] = np.inf
    inside = np.minimum(sizes, HUBER * spread)
    losses = inside * (sizes - inside / 2) / spread**2
    zeros = dict.fromkeys(COLUMNS, 0.0)
    return Solution(
        zeros | dict(zip(names, (beta / scales).tolist(), strict=True)),
        zeros | dict(zip(names, (np.sqrt(variance) / scales).tolist(), strict=True)),
        zeros | dict(zip(names, scales.tolist(), strict=True)),
        float(np.sqrt(np.average(errors**2, weights=weights**2))),
        len(sizes) * math.log(spread) + float(losses.sum()),
    )
