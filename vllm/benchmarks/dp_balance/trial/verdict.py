# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Whether two policies differ, from turns in pairs under the same load.

Of each round the logarithm of the ratio counts; Student's t distribution says within
which limits its mean lies (95 %). One figure is judged, the mean time of a request, so
that nothing is found by looking at many.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

JUDGED = "mean_e2el_ms"
"""It falls as throughput rises in a closed loop (Little's law), and weighs a later
start against faster tokens in an open one."""
WORTHWHILE = 0.02
"""Less does not pay for another moving part; as `recommend`."""
MOST_ROUNDS = 100
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""By degrees of freedom from 1 on."""
Z95 = 1.96


def t95(freedom: int) -> float:
    """The half width of a 95 % interval in standard errors (Student)."""
    if freedom <= len(T95):
        return T95[freedom - 1]
    # Cornish and Fisher's expansion; from 10 on, right to 0.1 %.
    z = Z95
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    )


@dataclass(frozen=True)
class Ratio:
    """Of a figure to the same of the base, over the rounds."""

    mean: float
    """The geometric one."""
    low: float
    high: float
    """Range of the rounds."""
    half_width: float | None
    """Of the 95 % interval of the logarithm of the mean; None of one round."""
    deviation: float
    """Standard deviation of the logarithm."""
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float], base: Sequence[float]) -> "Ratio | None":
        """None unless all are above 0."""
        if min(*values, *base) <= 0:
            return None
        logs = [math.log(x / y) for x, y in zip(values, base, strict=True)]
        count = len(logs)
        deviation = statistics.stdev(logs) if count > 1 else 0.0
        return cls(
            mean=math.exp(statistics.fmean(logs)),
            low=math.exp(min(logs)),
            high=math.exp(max(logs)),
            half_width=t95(count - 1) * deviation / math.sqrt(count)
            if count > 1
            else None,
            deviation=deviation,
            rounds=count,
        )

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the mean, 95 %."""
        if self.half_width is None:
            return None
        log = math.log(self.mean)
        return math.exp(log - self.half_width), math.exp(log + self.half_width)

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 1, and the difference matters."""
        if self.half_width is None:
            return False
        log = abs(math.log(self.mean))
        return log > self.half_width and abs(1 - self.mean) >= WORTHWHILE

    @property
    def more_rounds(self) -> int | None:
        """How many would show this difference, if it is one, or the least that matters.

        None if nothing says: of one round, or if it is more than `MOST_ROUNDS`.
        """
        if self.half_width is None:
            return None
        wanted = max(abs(math.log(self.mean)), math.log1p(WORTHWHILE))
        for count in range(2, MOST_ROUNDS):
            if t95(count - 1) * self.deviation / math.sqrt(count) < wanted:
                return max(0, count - self.rounds)
        return None


def sentence(policy: str, base: str, e2el: Ratio, rate: Ratio | None) -> str:
    """What is to be said of the two.

    Args:
        policy: one.
        base: the other.
        e2el: the ratio of the mean time of a request.
        rate: of the tokens per second; left out if None.
    """
    times = _earlier(e2el.mean)
    turns = f"{e2el.rounds} turns" if e2el.rounds > 1 else "one turn"
    limits = e2el.interval
    if e2el.differs:
        range_ = f"{_earlier(e2el.high)} to {_earlier(e2el.low)}"
        tokens = f"; {rate.mean:.2f} times the tokens per second" if rate else ""
        return (
            f"{policy}: requests end {times} than with {base} ({range_} over {turns} "
            f"each){tokens}."
        )
    apart = f"{policy} and {base} cannot be told apart"
    if limits is None:
        return (
            f"{apart} by one turn each, which has no range; requests ended {times} "
            f"with {policy}. Run the same command with --rounds 3."
        )
    more = e2el.more_rounds
    if more == 0:
        then = f"A difference of {WORTHWHILE:.0%} would have shown."
    elif more is None:
        then = f"More than {MOST_ROUNDS} turns would be needed; find what disturbs."
    else:
        then = f"About {more} more turns each would show it, if there is a difference."
    return (
        f"{apart}: requests end {times} with {policy}, and anything from "
        f"{_earlier(limits[1])} to {_earlier(limits[0])} is likely with {turns} each. "
        f"{then}"
    )


def _earlier(ratio: float) -> str:
    return f"{abs(1 - ratio):.1%} {'earlier' if ratio <= 1 else 'later'}"
