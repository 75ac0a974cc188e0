# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Whether two policies differ, from turns in pairs under the same load.

Of each round the logarithm of the ratio counts; Student's t distribution says within
which limits its mean lies (95 %). One figure is judged, the mean time of a request, so
that nothing is found by looking at many: it falls as throughput rises in a closed loop
(Little's law), and weighs a later start against faster tokens in an open one.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..simulator.results import WORTHWHILE

MOST_ROUNDS = 100
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""By degrees of freedom from 1 on."""


def t95(freedom: int) -> float:
    """The half width of a 95 % interval in standard errors (Student)."""
    if freedom <= len(T95):
        return T95[freedom - 1]
    # Cornish and Fisher's expansion; from 10 on, right to 0.1 %.
    return 1.96 + 2.372 / freedom + 2.822 / freedom**2


@dataclass(frozen=True)
class Ratio:
    """Of a figure to the same of the base, over the rounds."""

    mean: float
    """The geometric one."""
    low: float
    high: float
    """Range of the rounds."""
    deviation: float
    """Standard deviation of the logarithm; 0 of one round."""
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float], base: Sequence[float]) -> "Ratio | None":
        """None unless all are above 0."""
        if min(*values, *base) <= 0:
            return None
        logs = [math.log(x / y) for x, y in zip(values, base, strict=True)]
        deviation = statistics.stdev(logs) if len(logs) > 1 else 0.0
        ends = math.exp(min(logs)), math.exp(max(logs))
        return cls(math.exp(statistics.fmean(logs)), *ends, deviation, len(logs))

    def half_width(self, rounds: int) -> float:
        """Of the 95 % interval of the logarithm, with so many rounds, two or more."""
        return t95(rounds - 1) * self.deviation / math.sqrt(rounds)

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 1, and the difference matters."""
        if self.rounds < 2 or abs(1 - self.mean) < WORTHWHILE:
            return False
        return abs(math.log(self.mean)) > self.half_width(self.rounds)

    @property
    def more_rounds(self) -> int:
        """How many would show this difference, if it is one, or the least that matters.

        `MOST_ROUNDS` if those are not enough.
        """
        wanted = max(abs(math.log(self.mean)), math.log1p(WORTHWHILE))
        counts = range(max(2, self.rounds), MOST_ROUNDS)
        enough = (n - self.rounds for n in counts if self.half_width(n) < wanted)
        return next(enough, MOST_ROUNDS)


def sentence(policy: str, base: str, e2el: Ratio, rate: Ratio | None) -> str:
    """What is to be said of the two.

    Args:
        policy: one.
        base: the other.
        e2el: the ratio of the mean time of a request.
        rate: of the tokens per second; left out if None.
    """
    mean, rounds = _earlier(e2el.mean), e2el.rounds
    if e2el.differs:
        tokens = f"; {rate.mean:.2f} times the tokens per second" if rate else ""
        range_ = f"{_earlier(e2el.high)} to {_earlier(e2el.low)}"
        return (
            f"{policy}: requests end {mean} than with {base} ({range_} over {rounds} "
            f"turns each){tokens}."
        )
    apart = f"{policy} and {base} cannot be told apart"
    if rounds == 1:
        return (
            f"{apart} by one turn each, which has no range; requests ended {mean} "
            f"with {policy}. Run the same command with --rounds 3."
        )
    then = f"About {e2el.more_rounds} more turns each would show it, if it is there."
    if e2el.more_rounds == 0:
        then = f"A difference of {WORTHWHILE:.0%} would have shown."
    half = e2el.half_width(rounds)
    low, high = (_earlier(e2el.mean * math.exp(x)) for x in (-half, half))
    return (
        f"{apart}: requests end {mean} with {policy}, and with {rounds} turns each "
        f"anything from {high} to {low} is likely. {then}"
    )


def _earlier(ratio: float) -> str:
    return f"{abs(1 - ratio):.1%} {'earlier' if ratio <= 1 else 'later'}"
