# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The figures of each stretch, from the times of requests and of their tokens.

A TTFT or TPOT counts in the stretch in which it began, also if it ends in the next one:
so their differences between policies come out rather too small.
"""

import math
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import covariance, variance
from typing import NamedTuple

from .verdict import ALPHA, Interval

TICK = 0.05
"""The resolution of the times at which tokens left, in seconds."""


class Answer(NamedTuple):
    """A request that was answered; times are in seconds of one clock."""

    request: int
    """Its number in the load."""
    due: float
    """When it was to be sent; with `--max-concurrency` it may have been sent later."""
    first: float
    """When the first token came, and the last one."""
    last: float
    prompt: int
    output: int
    """Tokens."""
    digest: str
    """A hash of the answer's text."""


class Stretch(NamedTuple):
    """Some seconds with one policy."""

    block: int
    policy: str
    before: str | None
    """The policy of the stretch before, if it was on the same server."""
    begin: float
    """When the ranks had taken the policy."""
    end: float


class Limits(NamedTuple):
    """Limits of latency in seconds; the defaults are MLPerf's for DeepSeek-R1."""

    ttft: float = 2.0
    tpot: float = 0.08


MLPERF = Limits()
JUDGED, RATE = "mean_e2el_ms", "output_throughput"
TTFT, TTFT_TAIL, TPOT = "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms"
WITHIN_LIMITS = "within_limits"
FIGURES = {
    JUDGED: ("seconds a request takes, mean", 1e-3, "{:.2f}"),
    RATE: ("output tokens per second", 1.0, "{:.0f}"),
    TTFT: ("seconds to first token, median", 1e-3, "{:.2f}"),
    TTFT_TAIL: ("seconds to first token, p99", 1e-3, "{:.2f}"),
    TPOT: ("ms between tokens, mean (TPOT)", 1.0, "{:.0f}"),
    WITHIN_LIMITS: ("% of requests within limits", 100.0, "{:.0f}"),
}
"""By name: title, factor to the shown unit, and format."""


@dataclass(frozen=True)
class Measured:
    """The measurements of a load and its stretches."""

    answers: Sequence[Answer] = ()
    ticks: Mapping[int, float] = field(default_factory=dict)
    """Tokens that left, by the number of the tick."""
    waiting: Sequence[float] = ()
    """The times at which the unanswered requests were due."""
    stretches: Sequence[Stretch] = ()
    washout: float = 0.0
    """Seconds of each stretch that are left out."""
    clients: int | None = None
    """Requests under way at any time, of a closed loop; else None."""
    limits: Limits = MLPERF

    @property
    def blocks(self) -> int:
        """The number of blocks that have a stretch."""
        return len({stretch.block for stretch in self.stretches})

    def whole_blocks(self, policies: int) -> "Measured":
        """The measurements of blocks that have all stretches and all answers."""
        answered_until = min(self.waiting, default=math.inf)
        blocks = [s.block for s in self.stretches if s.end <= answered_until]
        complete = [s for s in self.stretches if blocks.count(s.block) == policies]
        return replace(self, stretches=complete)

    @cached_property
    def figures(self) -> list[dict[str, float]]:
        """The figures of each stretch; 0 where no request began in it.

        Mean latency is by Little's law: the requests under way over the requests per
        second. In a closed loop these are a mean of prompt tokens and of answer tokens
        per second, each over that of a request, so that a stretch that begins more
        requests than it ends counts no more than another; it is weighted to vary least,
        as either kind of token has most of the cost. A prompt's tokens count evenly
        from due to first token, because held prompts end together, and one stretch may
        have a group of them more than another.
        """
        if not (self.answers and self.stretches):
            return [dict.fromkeys(FIGURES, 0.0) for _ in self.stretches]
        mean_prompt = statistics.fmean(a.prompt for a in self.answers)
        mean_output = statistics.fmean(a.output for a in self.answers)
        prompts = _Integral(
            (time, change / mean_prompt)
            for a in self.answers
            for time, change in _changes(a)
        )
        tokens = _Sums((tick * TICK, n / mean_output) for tick, n in self.ticks.items())
        dues = [*(a.due for a in self.answers), *self.waiting]
        ends = ((a.last, -1.0) for a in self.answers)
        requests = _Integral([*((due, 1.0) for due in dues), *ends])
        windows = [(s.begin + self.washout, s.end) for s in self.stretches]
        arrivals = _Sums((due, 1.0) for due in dues)
        rate = sum(arrivals.between(*window) for window in windows)
        rate /= sum(end - begin for begin, end in windows)
        rates = [
            [x.between(begin, end) / (end - begin) for x in (prompts, tokens, requests)]
            for begin, end in windows
        ]
        by_policy: dict[str, list[list[float]]] = defaultdict(list)
        for stretch, (prompt, output, _) in zip(self.stretches, rates, strict=True):
            by_policy[stretch.policy].append([prompt, output])
        weight = _steadiest(by_policy.values())
        figures: list[dict[str, float]] = []
        for stretch, (prompt, output, under_way) in zip(
            self.stretches, rates, strict=True
        ):
            work = weight * prompt + (1 - weight) * output
            if self.clients is not None:
                latency = self.clients / work if work else 0.0
            else:
                latency = under_way / rate if rate else 0.0
            ttfts, tpots, within = self._requests[stretch]
            figures.append(
                {
                    JUDGED: 1e3 * latency,
                    RATE: output * mean_output,
                    TTFT: 1e3 * percentile(ttfts, 0.5),
                    TTFT_TAIL: 1e3 * percentile(ttfts, 0.99),
                    TPOT: 1e3 * mean(tpots),
                    WITHIN_LIMITS: mean(within),
                }
            )
        return figures

    @cached_property
    def _requests(
        self,
    ) -> Mapping[Stretch, tuple[list[float], list[float], list[float]]]:
        """By stretch the TTFTs, the TPOTs, and 1 for each request within the limits.

        A TPOT belongs to the stretch of the first token, the others to that of `due`.
        """
        begins = [stretch.begin + self.washout for stretch in self.stretches]

        def stretch_of(time: float) -> Stretch | None:
            index = bisect_left(begins, time) - 1
            is_in = index >= 0 and time < self.stretches[index].end
            return self.stretches[index] if is_in else None

        by_stretch: dict[Stretch, tuple[list[float], list[float], list[float]]]
        by_stretch = defaultdict(lambda: ([], [], []))
        for answer in self.answers:
            ttft = answer.first - answer.due
            tpot = (answer.last - answer.first) / max(1, answer.output - 1)
            if (stretch := stretch_of(answer.due)) is not None:
                is_within = ttft <= self.limits.ttft and tpot <= self.limits.tpot
                by_stretch[stretch][0].append(ttft)
                by_stretch[stretch][2].append(float(is_within))
            if answer.output > 1 and (stretch := stretch_of(answer.first)) is not None:
                by_stretch[stretch][1].append(tpot)
        return by_stretch

    def of(self, policy: str) -> dict[str, float]:
        """The means of a policy's stretches; TTFT and limits over its requests."""
        stretches = [s for s in self.stretches if s.policy == policy]
        pairs = zip(self.figures, self.stretches, strict=True)
        figures = [f for f, s in pairs if s in stretches]
        means = {name: mean([f[name] for f in figures if f[name]]) for name in FIGURES}
        ttfts = [value for s in stretches for value in self._requests[s][0]]
        within = [value for s in stretches for value in self._requests[s][2]]
        means[TTFT], means[TTFT_TAIL] = (
            1e3 * percentile(ttfts, share) for share in (0.5, 0.99)
        )
        return means | {WITHIN_LIMITS: mean(within)}

    def ratio(
        self, policy: str, base: str, name: str = JUDGED, alpha: float = ALPHA
    ) -> Interval:
        """The interval of the logarithm of a policy's figure over that of the base.

        All policies are taken to vary alike within blocks, and give its width together,
        because few blocks of two would not tell it.
        """
        by_block: dict[int, dict[str, float]] = defaultdict(dict)
        for stretch, figures in zip(self.stretches, self.figures, strict=True):
            by_block[stretch.block][stretch.policy] = figures[name]
        policies = {stretch.policy for stretch in self.stretches}
        blocks = [x for x in by_block.values() if x.keys() == policies]
        means = {each: mean([x[each] for x in blocks]) for each in policies}
        if not (blocks and means[policy] and means[base]):
            return Interval.of([])
        measured = [each for each in policies if means[each]]
        # Parts in the logarithm of a ratio of means (delta method).
        parts = [[x[each] / means[each] for each in measured] for x in blocks]
        log_ratio = math.log(means[policy] / means[base])
        return Interval.within(log_ratio, parts, alpha)

    def carry_over(self) -> Interval | None:
        """How much longer requests take after another policy than after the same.

        The logarithm of the ratio, without the means of blocks and of policies; None
        with too few stretches.
        """
        pairs = zip(self.stretches, self.figures, strict=True)
        logs = {s: math.log(f[JUDGED]) for s, f in pairs if f[JUDGED]}
        groups: dict[int | str, list[float]] = defaultdict(list)
        for stretch, value in logs.items():
            groups[stretch.block].append(value)
            groups[stretch.policy].append(value)
        means = {key: mean(values) for key, values in groups.items()}
        residuals: dict[bool, list[float]] = {True: [], False: []}
        for stretch, value in logs.items():
            residual = value - means[stretch.block] - means[stretch.policy]
            if stretch.before is not None:
                residuals[stretch.before == stretch.policy].append(residual)
        if min(map(len, residuals.values())) < FEWEST:
            return None
        same, other = Interval.of(residuals[True]), Interval.of(residuals[False])
        return Interval(
            other.mean - same.mean,
            math.hypot(same.half, other.half),
            math.hypot(same.deviation, other.deviation),
            same.values + other.values,
        )


FEWEST = 3
"""Stretches of a kind that are needed to tell how they vary."""


def _steadiest(groups: Iterable[Sequence[Sequence[float]]]) -> float:
    """The weight of the first of two values with which their mean varies least.

    Two estimates of the same are weighted so (minimum variance: control variates). What
    changes both alike, as the machine does, does not count, nor how groups differ.
    """
    first = second = 0.0
    for group in groups:
        if len(group) < FEWEST:
            return 0.5
        one, other = zip(*group, strict=True)
        both = covariance(one, other)
        first += variance(one) - both
        second += variance(other) - both
    sum_ = first + second
    return min(max(second / sum_, 0.0), 1.0) if sum_ else 0.5


class _Sums:
    """Cumulative sums of timed values."""

    def __init__(self, values: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(values)
        self._times = [time for time, _ in ordered]
        self._sums = [0.0]
        for _, value in ordered:
            self._sums.append(self._sums[-1] + value)

    def between(self, begin: float, end: float) -> float:
        """The sum of the values at `begin` or later, and before `end`."""
        places = (bisect_left(self._times, time) for time in (end, begin))
        return self._sums[next(places)] - self._sums[next(places)]


class _Integral:
    """The integral of a rate that changes in steps."""

    def __init__(self, changes: Iterable[tuple[float, float]]) -> None:
        """Takes the changes: their times, and by how much the rate grows."""
        self._times, self._amounts, self._rates = [-math.inf], [0.0], [0.0]
        for time, change in sorted(changes):
            self._amounts.append(self._until(time))
            self._times.append(time)
            self._rates.append(self._rates[-1] + change)

    def between(self, begin: float, end: float) -> float:
        return self._until(end) - self._until(begin)

    def _until(self, time: float) -> float:
        index = bisect_left(self._times, time) - 1
        rate = self._rates[index]
        return self._amounts[index] + (rate and rate * (time - self._times[index]))


def _changes(answer: Answer) -> Iterator[tuple[float, float]]:
    """The changes of the rate of prompt tokens, which is even from due to first."""
    rate = answer.prompt / max(answer.first - answer.due, TICK)
    yield answer.first, -rate
    yield min(answer.due, answer.first - TICK), rate


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest value; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def mean(values: Sequence[float]) -> float:
    """The mean; 0 if there are no values."""
    return statistics.fmean(values) if values else 0.0


def mean_latency(answers: Sequence[Answer]) -> float:
    """Mean seconds from due to the last token; 0 if there are no answers."""
    return mean([answer.last - answer.due for answer in answers])
