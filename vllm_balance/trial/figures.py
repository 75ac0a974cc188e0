# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The figures of each stretch, from when requests came and their tokens left.

What is timed counts whole where it began, also what reaches over the end of a stretch:
so first tokens and times between tokens show a difference rather too small.
"""

import math
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from .verdict import ALPHA, Interval

TICK = 0.05
"""Seconds within which it is not told when a token left."""


class Answer(NamedTuple):
    """A request that was answered; times are in seconds of one clock."""

    request: int
    """Its number in the load."""
    due: float
    """When it was to be sent: earlier than it was where `--max-concurrency` bound."""
    first: float
    """When the first token came, and the last one."""
    last: float
    prompt: int
    output: int
    """Tokens."""
    digest: str
    """Of the text: equal answers have equal ones."""


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
    """Seconds within which users want answers: MLPerf's of servers of DeepSeek-R1."""

    ttft: float = 2.0
    tpot: float = 0.08


MLPERF = Limits()
JUDGED, RATE = "mean_e2el_ms", "output_throughput"
TTFT, TTFT_TAIL, TPOT = "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms"
KEPT = "within_limits"
FIGURES = {
    JUDGED: ("seconds a request takes, mean", 1e-3, "{:.2f}"),
    RATE: ("output tokens per second", 1.0, "{:.0f}"),
    TTFT: ("seconds to first token, median", 1e-3, "{:.2f}"),
    TTFT_TAIL: ("seconds to first token, p99", 1e-3, "{:.2f}"),
    TPOT: ("ms between tokens, mean (TPOT)", 1.0, "{:.0f}"),
    KEPT: ("% of requests within limits", 100.0, "{:.0f}"),
}
"""Title, scale and format."""


@dataclass(frozen=True)
class Measured:
    """What is known of a load and its stretches."""

    answers: Sequence[Answer] = ()
    ticks: Mapping[int, float] = field(default_factory=dict)
    """Tokens that left, by the number of the tick."""
    waiting: Sequence[float] = ()
    """When requests without an answer were due."""
    stretches: Sequence[Stretch] = ()
    washout: float = 0.0
    """Seconds of each stretch that are left out."""
    clients: int | None = None
    """Requests under way at any time, of a closed loop; else None."""
    limits: Limits = MLPERF

    @property
    def blocks(self) -> int:
        """How many there are."""
        return len({stretch.block for stretch in self.stretches})

    def whole_blocks(self, policies: int) -> "Measured":
        """Without blocks that lack a stretch, or have requests without an answer."""
        until = min(self.waiting, default=math.inf)
        ended = [stretch.block for stretch in self.stretches if stretch.end <= until]
        found = [s for s in self.stretches if ended.count(s.block) == policies]
        return replace(self, stretches=found)

    @cached_property
    def figures(self) -> list[dict[str, float]]:
        """Of each stretch; 0 where nothing began in it.

        In a closed loop requests take as long as the clients over the work per second
        (Little's law): prompt tokens and answer tokens per second, each over the mean
        of a request, half and half, so that a stretch that begins more than it ends
        counts no more than another. A prompt counts evenly from when it was due to its
        first token, because prompts that were held end together, and a stretch may have
        a group of them more than another. Else as long as the requests under way,
        averaged over time, over those that come per second.
        """
        if not (self.answers and self.stretches):
            return [dict.fromkeys(FIGURES, 0.0) for _ in self.stretches]
        mean_prompt = statistics.fmean(a.prompt for a in self.answers)
        mean_output = statistics.fmean(a.output for a in self.answers)
        prompts = _Amount(each for a in self.answers for each in _changes(a))
        tokens = _Sums((tick * TICK, n) for tick, n in self.ticks.items())
        dues = [*(a.due for a in self.answers), *self.waiting]
        ends = ((a.last, -1.0) for a in self.answers)
        requests = _Amount([*((due, 1.0) for due in dues), *ends])
        windows = [(s.begin + self.washout, s.end) for s in self.stretches]
        each = _Sums((due, 1.0) for due in dues)
        rate = sum(each.between(*window) for window in windows)
        rate /= sum(end - begin for begin, end in windows)
        found: list[dict[str, float]] = []
        for stretch, (begin, end) in zip(self.stretches, windows, strict=True):
            seconds = end - begin
            prompt, output, under_way = (
                x.between(begin, end) / seconds for x in (prompts, tokens, requests)
            )
            work = (prompt / mean_prompt + output / mean_output) / 2
            if self.clients is not None:
                latency = self.clients / work if work else 0.0
            else:
                latency = under_way / rate if rate else 0.0
            ttfts, tpots, kept = self._requests[stretch]
            found.append(
                {
                    JUDGED: 1e3 * latency,
                    RATE: output,
                    TTFT: 1e3 * percentile(ttfts, 0.5),
                    TTFT_TAIL: 1e3 * percentile(ttfts, 0.99),
                    TPOT: 1e3 * mean(tpots),
                    KEPT: mean(kept),
                }
            )
        return found

    @cached_property
    def _requests(
        self,
    ) -> Mapping[Stretch, tuple[list[float], list[float], list[float]]]:
        """By stretch TTFT, TPOT, and which requests kept the limits, as 1.

        TPOT are of those requests whose first token came in it, the others of those
        that were due in it.
        """
        begins = [stretch.begin + self.washout for stretch in self.stretches]

        def stretch_of(time: float) -> Stretch | None:
            place = bisect_left(begins, time) - 1
            is_in = place >= 0 and time < self.stretches[place].end
            return self.stretches[place] if is_in else None

        found: dict[Stretch, tuple[list[float], list[float], list[float]]]
        found = defaultdict(lambda: ([], [], []))
        for answer in self.answers:
            ttft = answer.first - answer.due
            tpot = (answer.last - answer.first) / max(1, answer.output - 1)
            if (stretch := stretch_of(answer.due)) is not None:
                kept = ttft <= self.limits.ttft and tpot <= self.limits.tpot
                found[stretch][0].append(ttft)
                found[stretch][2].append(float(kept))
            if answer.output > 1 and (stretch := stretch_of(answer.first)) is not None:
                found[stretch][1].append(tpot)
        return found

    def of(self, policy: str) -> dict[str, float]:
        """The means of the stretches with a policy; of first tokens those of all."""
        mine = [s for s in self.stretches if s.policy == policy]
        all_of = [
            f for f, s in zip(self.figures, self.stretches, strict=True) if s in mine
        ]
        found = {name: mean([f[name] for f in all_of if f[name]]) for name in FIGURES}
        ttfts = [each for s in mine for each in self._requests[s][0]]
        kept = [each for s in mine for each in self._requests[s][2]]
        found[TTFT], found[TTFT_TAIL] = (
            1e3 * percentile(ttfts, share) for share in (0.5, 0.99)
        )
        return found | {KEPT: mean(kept)}

    def ratio(
        self, policy: str, base: str, name: str = JUDGED, both: float = ALPHA
    ) -> Interval:
        """Of a figure over that of the base, from the blocks that have both."""
        by_block: dict[int, dict[str, float]] = defaultdict(dict)
        for stretch, figures in zip(self.stretches, self.figures, strict=True):
            by_block[stretch.block][stretch.policy] = figures[name]
        every = by_block.values()
        pairs = [(x[policy], x[base]) for x in every if policy in x and base in x]
        one, other = (mean([pair[place] for pair in pairs]) for place in (0, 1))
        if not (one and other):
            return Interval.of([])
        # What each block adds to the logarithm of the ratio of means (delta method).
        middle = math.log(one / other)
        return Interval.of([middle + x / one - y / other for x, y in pairs], both)

    def carry_over(self) -> Interval | None:
        """How much longer requests take behind another policy than behind their own.

        As a logarithm, without what blocks and what policies have in common; None where
        the stretches cannot tell.
        """
        pairs = zip(self.stretches, self.figures, strict=True)
        logs = {s: math.log(f[JUDGED]) for s, f in pairs if f[JUDGED]}
        groups: dict[int | str, list[float]] = defaultdict(list)
        for stretch, value in logs.items():
            groups[stretch.block].append(value)
            groups[stretch.policy].append(value)
        means = {key: mean(values) for key, values in groups.items()}
        behind: dict[bool, list[float]] = {True: [], False: []}
        for stretch, value in logs.items():
            rest = value - means[stretch.block] - means[stretch.policy]
            if stretch.before is not None:
                behind[stretch.before == stretch.policy].append(rest)
        if min(map(len, behind.values())) < FEWEST:
            return None
        own, other = Interval.of(behind[True]), Interval.of(behind[False])
        return Interval(
            other.mean - own.mean,
            math.hypot(own.half, other.half),
            math.hypot(own.deviation, other.deviation),
            own.values + other.values,
        )


FEWEST = 3
"""Stretches behind their own policy, without which nothing is said of carrying over."""


class _Sums:
    """Sums of values up to a time."""

    def __init__(self, values: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(values)
        self._times = [time for time, _ in ordered]
        self._sums = [0.0]
        for _, value in ordered:
            self._sums.append(self._sums[-1] + value)

    def between(self, begin: float, end: float) -> float:
        """Of the values from one time on until before another."""
        places = (bisect_left(self._times, time) for time in (end, begin))
        return self._sums[next(places)] - self._sums[next(places)]


class _Amount:
    """What grows evenly between changes of how much of it comes per second."""

    def __init__(self, changes: Iterable[tuple[float, float]]) -> None:
        """From changes: their times, and by how much the rate grows."""
        self._times, self._amounts, self._rates = [-math.inf], [0.0], [0.0]
        for time, change in sorted(changes):
            self._amounts.append(self._until(time))
            self._times.append(time)
            self._rates.append(self._rates[-1] + change)

    def between(self, begin: float, end: float) -> float:
        """What comes from one time to another."""
        return self._until(end) - self._until(begin)

    def _until(self, time: float) -> float:
        place = bisect_left(self._times, time) - 1
        rate = self._rates[place]
        return self._amounts[place] + (rate and rate * (time - self._times[place]))


def _changes(answer: Answer) -> Iterator[tuple[float, float]]:
    """Of how many tokens of its prompt come per second."""
    rate = answer.prompt / max(answer.first - answer.due, TICK)
    yield answer.first, -rate
    yield min(answer.due, answer.first - TICK), rate


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest value; 0 of none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def mean(values: Sequence[float]) -> float:
    """0 of none."""
    return statistics.fmean(values) if values else 0.0


def mean_latency(answers: Sequence[Answer]) -> float:
    """Seconds from when a request was due to its last token; 0 of none."""
    return mean([answer.last - answer.due for answer in answers])
