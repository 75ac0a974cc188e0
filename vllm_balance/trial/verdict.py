# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Whether two policies differ, from blocks in each of which both were served.

The means of a figure over the blocks are compared, and what a block has in common is
no part of it; Student's t distribution says within which limits their ratio lies. One
figure is judged, so that nothing is found by looking at many.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ..simulator.results import WORTHWHILE

LEAST_BLOCKS = 4
"""Before nothing is said, however long they take."""
MOST_BLOCKS = 400
ALPHA, EARLY = 0.05, 0.01
"""How often a difference may be found that is none, and how much of that is spent on
all looks before the last (J. L. Haybittle 1971; R. Peto 1976): evenly, as levels that
add up (Bonferroni), which alpha spending allows whatever the looks have in common
(K. K. G. Lan, D. L. DeMets 1983)."""


def level(blocks: int, most: int) -> float:
    """How often a look after so many blocks, of `most`, may find what is not there."""
    if blocks >= most or most <= LEAST_BLOCKS:
        return ALPHA - EARLY * (most > LEAST_BLOCKS)
    return EARLY / (most - LEAST_BLOCKS)


def t_quantile(both: float, freedom: int) -> float:
    """Half width in standard errors that is left out with a probability of `both`.

    D. L. Wallace's approximation to Student's distribution (1959), inverted: right to
    a per cent from 3 degrees of freedom on, and never too small there.
    """
    z = statistics.NormalDist().inv_cdf(1 - both / 2)
    z *= (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(z * z / freedom))


class Interval(NamedTuple):
    """Of a mean, of logarithms unless it is said otherwise."""

    mean: float
    half: float
    """Half of its width; infinite of less than two values."""
    deviation: float
    """Standard deviation of the values."""
    values: int
    """How many there are."""

    @classmethod
    def of(cls, values: Sequence[float], both: float = ALPHA) -> "Interval":
        """From values, which it misses with a probability of `both`."""
        count = len(values)
        mean = statistics.fmean(values) if values else 0.0
        if count < 2:
            return cls(mean, math.inf, 0.0, count)
        deviation = statistics.stdev(values)
        half = t_quantile(both, count - 1) * deviation / math.sqrt(count)
        return cls(mean, half, deviation, count)

    @property
    def ratios(self) -> tuple[float, float, float]:
        """The mean, and the ends, as ratios; infinite where nothing is known."""
        ends = (self.mean, self.mean - self.half, self.mean + self.half)
        mean, low, high = (math.exp(min(x, 700.0)) for x in ends)
        return mean, low, high

    @property
    def differs(self) -> bool:
        """Whether it leaves out 0, and the difference matters."""
        matters = abs(math.expm1(self.mean)) >= WORTHWHILE
        return matters and abs(self.mean) > self.half

    def more_blocks(self) -> int:
        """How many would show this difference, or the least that matters."""
        wanted = max(abs(self.mean), math.log1p(WORTHWHILE))
        for count in range(max(self.values, 2), MOST_BLOCKS):
            half = t_quantile(ALPHA - EARLY, count - 1)
            if half * self.deviation / math.sqrt(count) < wanted:
                return max(1, count - self.values)
        return MOST_BLOCKS


def earlier(ratio: float) -> str:
    """A ratio of latencies in words."""
    return f"{abs(1 - ratio):.1%} {'earlier' if ratio <= 1 else 'later'}"


def sentence(policy: str, base: str, latency: Interval, block_s: float) -> str:
    """What is to be said of the latency of a policy over that of the base."""
    mean, low, high = latency.ratios
    after = f"{latency.values} blocks of {block_s:.0f} s"
    if latency.differs:
        return (
            f"{policy}: requests end {earlier(mean)} than with {base} (likely "
            f"{earlier(high)} to {earlier(low)}; {after})."
        )
    more = latency.more_blocks()
    then = f"about {math.ceil(more * block_s / 60)} more minutes would show it"
    if latency.half < math.log1p(WORTHWHILE):
        then = f"a difference of {WORTHWHILE:.0%} would have shown"
    elif more >= MOST_BLOCKS:
        then = "hours would not show it"
    return (
        f"{policy} and {base} cannot be told apart: {earlier(mean)}, and anything from "
        f"{earlier(high)} to {earlier(low)} is likely after {after}, which differ by "
        f"{latency.deviation:.0%} among themselves; {then}."
    )
