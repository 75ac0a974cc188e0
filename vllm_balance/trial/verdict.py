# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Whether two policies differ, from blocks in each of which both were served.

The means of a figure over the blocks are compared, which leaves out how blocks differ;
Student's t distribution gives the interval of their ratio. One figure is judged, so
that no difference is found by looking at many figures.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ..simulator.results import WORTHWHILE

LEAST_BLOCKS = 4
"""The smallest number of blocks of a verdict, however long they take."""
MOST_BLOCKS = 400
ALPHA, EARLY = 0.05, 0.01
"""The error rate of the first kind, and the part of it that is spent on all looks
before the last (J. L. Haybittle 1971; R. Peto 1976): evenly, as levels that add up
(Bonferroni), which alpha spending allows however the looks are correlated
(K. K. G. Lan, D. L. DeMets 1983)."""


def level(blocks: int, max_blocks: int) -> float:
    """The error rate of a look after `blocks` of at most `max_blocks`."""
    if blocks >= max_blocks or max_blocks <= LEAST_BLOCKS:
        return ALPHA - EARLY * (max_blocks > LEAST_BLOCKS)
    return EARLY / (max_blocks - LEAST_BLOCKS)


def t_quantile(alpha: float, freedom: int) -> float:
    """The half width, in standard errors, of an interval with error rate `alpha`.

    D. L. Wallace's approximation to Student's distribution (1959), inverted: exact to
    a per cent from 3 degrees of freedom on, and never too small there.
    """
    z = statistics.NormalDist().inv_cdf(1 - alpha / 2)
    z *= (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(z * z / freedom))


class Interval(NamedTuple):
    """A confidence interval of a mean, usually of logarithms."""

    mean: float
    half: float
    """Half of the width; infinite with less than two values."""
    deviation: float
    """Standard deviation of the values."""
    values: int
    """The number of values."""
    pooled: int = 1
    """How many independent differences each value gives for the deviation."""

    @classmethod
    def of(cls, values: Sequence[float], alpha: float = ALPHA) -> "Interval":
        """The interval that misses the mean with a probability of `alpha`."""
        count = len(values)
        mean = statistics.fmean(values) if values else 0.0
        deviation = statistics.stdev(values) if count > 1 else 0.0
        return cls(mean, _half(alpha, deviation, count, 1), deviation, count)

    @classmethod
    def within(
        cls, mean: float, blocks: Sequence[Sequence[float]], alpha: float = ALPHA
    ) -> "Interval":
        """The interval of a mean difference of two columns of blocks.

        Each column has the mean 1; its deviation within blocks is that of all columns
        (analysis of variance of randomized blocks).
        """
        count, pooled = len(blocks), len(blocks[0]) - 1
        deviation = 0.0
        if count > 1:
            squares = sum(map(statistics.variance, blocks))
            deviation = math.sqrt(2 * squares / (count - 1))
        half = _half(alpha, deviation, count, pooled)
        return cls(mean, half, deviation, count, pooled)

    @property
    def ratios(self) -> tuple[float, float, float]:
        """The mean and the ends of the interval, as ratios."""
        ends = (self.mean, self.mean - self.half, self.mean + self.half)
        mean, low, high = (math.exp(min(x, 700.0)) for x in ends)
        return mean, low, high

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 0, and the mean is worthwhile."""
        matters = abs(math.expm1(self.mean)) >= WORTHWHILE
        return matters and abs(self.mean) > self.half

    def more_blocks(self) -> int:
        """How many more blocks would show this difference, or a worthwhile one."""
        difference = max(abs(self.mean), math.log1p(WORTHWHILE))
        for count in range(max(self.values, 2), MOST_BLOCKS):
            if _half(ALPHA - EARLY, self.deviation, count, self.pooled) < difference:
                return max(1, count - self.values)
        return MOST_BLOCKS


def _half(alpha: float, deviation: float, count: int, pooled: int) -> float:
    """Half of the width of an interval; infinite with less than two values."""
    if count < 2:
        return math.inf
    return t_quantile(alpha, pooled * (count - 1)) * deviation / math.sqrt(count)


def earlier(ratio: float) -> str:
    return f"{abs(1 - ratio):.1%} {'earlier' if ratio <= 1 else 'later'}"


def sentence(policy: str, base: str, latency: Interval, block_s: float) -> str:
    """The verdict on a policy's latency over that of the base."""
    mean, low, high = latency.ratios
    after = f"{latency.values} blocks of {block_s:.0f} s"
    if latency.differs:
        return (
            f"{policy}: requests end {earlier(mean)} than with {base} (likely "
            f"{earlier(high)} to {earlier(low)}; {after})."
        )
    more_blocks = latency.more_blocks()
    hint = f"about {math.ceil(more_blocks * block_s / 60)} more minutes would show it"
    if latency.half < math.log1p(WORTHWHILE):
        hint = f"a difference of {WORTHWHILE:.0%} would have shown"
    elif more_blocks >= MOST_BLOCKS:
        hint = "hours would not show it"
    return (
        f"{policy} and {base} cannot be told apart: {earlier(mean)}, and anything from "
        f"{earlier(high)} to {earlier(low)} is likely after {after}, which differ by "
        f"{latency.deviation:.0%} among themselves; {hint}."
    )
