# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What steps cost on a running server, from its log."""

import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError
from ..files import read_text


class StepSample(NamedTuple):
    """One step that was measured; a value per rank."""

    seconds: float
    prefill: tuple[float, ...]
    """Prompt tokens."""
    decodes: tuple[float, ...]
    """Requests that decoded."""
    ends_interval: bool = True
    """False where only the sum of this and later steps was measured; then `seconds`
    is 0, and the step that ends the interval has the time of all."""


class ServerLog(NamedTuple):
    """What a server's log tells."""

    samples: list[StepSample]
    host_seconds: float
    """Mean time between the steps of a busy server: scheduling and output."""


class _Iteration(NamedTuple):
    seconds: float
    prefill: float
    decodes: float
    clock: datetime


ITERATION = (
    r"Iteration\((?P<number>\d{1,15})\): "
    r"\d+ context requests, (?P<prefill>\d{1,9}) context tokens, "
    r"(?P<decodes>\d{1,9}) generation requests, \d+ generation tokens, "
    r"iteration elapsed time: (?P<ms>\d{1,9}(?:\.\d+)?) ms"
)
"""What vLLM says of a step, as a regular expression."""

# Without the name of the rank: when several ranks write at once, it comes apart from
# the rest of the line. Ranks are alike to the cost model, so it is not needed. Later
# releases log from the front-end, which numbers the engines.
_ITERATION = re.compile(
    r"(?P<clock>\d\d-\d\d \d\d:\d\d:\d\d) \[\S+\] (?:Engine \d+: )?" + ITERATION
)


_COLOUR = re.compile(r"\x1b\[[\d;]*m")
"""As vLLM writes it to a terminal, which `docker run -t` is."""


def read_server_logs(paths: Sequence[Path], ranks: int) -> ServerLog:
    """Reads the steps that `vllm serve --enable-logging-iteration-details` logged.

    Args:
        paths: the log of each node; together they cover all ranks, of one start.
        ranks: the data parallel size.

    Raises:
        UsageError: a file cannot be read, or steps were not logged by so many ranks.
    """
    steps: defaultdict[int, list[_Iteration]] = defaultdict(list)
    torn = 0
    for path in paths:
        text = _COLOUR.sub("", read_text(path, errors="replace"))
        torn += text.count("Iteration(")
        for match in _ITERATION.finditer(text):
            try:
                clock = datetime.fromisoformat(f"2024-{match['clock']}")
            except ValueError:
                continue
            torn -= 1
            steps[int(match["number"])].append(
                _Iteration(
                    seconds=float(match["ms"]) / 1e3,
                    prefill=float(match["prefill"]),
                    decodes=float(match["decodes"]),
                    clock=clock,
                )
            )
    complete = [step for _, step in sorted(steps.items()) if len(step) == ranks]
    if len(complete) * 2 <= len(steps):
        found = statistics.mode(map(len, steps.values())) if steps else 0
        strange = f"; {torn} lines of steps are torn or of another format" * bool(torn)
        raise UsageError(
            f"{', '.join(map(str, paths))}: most steps were logged by {found} ranks, "
            f"not by {ranks}{strange}; start the server once, with "
            "--enable-logging-iteration-details, and give the logs of all nodes."
        )
    incomplete = len(steps) - len(complete)
    complete = [step for step in complete if min(one.seconds for one in step) > 0]
    instant = len(steps) - incomplete - len(complete)
    for count, what in (
        (torn, "lines that are torn"),
        (incomplete, f"steps that were not logged by {ranks} ranks"),
        (instant, "steps that took 0 ms"),
    ):
        if count:
            _say(paths, f"left out {count} {what}")
    clocks = [sorted(one.clock for one in step) for step in complete]
    apart = max((last - first for first, *_, last in clocks), default=timedelta())
    if apart > timedelta(hours=1):
        what = "the ranks logged the same steps, as logs of several starts do"
        _say(paths, f"{what}, up to {apart} apart")
    samples = [
        StepSample(
            # The rank that starts its step last waits for no other.
            min(iteration.seconds for iteration in step),
            tuple(iteration.prefill for iteration in step),
            tuple(iteration.decodes for iteration in step),
        )
        for step in complete
    ]
    first_clocks = [step[0].clock for step in complete]
    return ServerLog(samples, _host_seconds(paths, samples, first_clocks))


def _say(paths: Sequence[Path], what: str) -> None:
    print(f"note: {', '.join(map(str, paths))}: {what}.", file=sys.stderr)


OVERLAP = 0.25
"""Share of a stretch by which its clocks cannot be wrong."""
LEAST_STRETCH = 10.0
"""Seconds: the clock of a log counts whole ones."""


def _host_seconds(
    paths: Sequence[Path], samples: Sequence[StepSample], clocks: Sequence[datetime]
) -> float:
    """Mean time between two steps, in the longest stretch without a pause.

    The clocks are whole seconds, so a single gap tells nothing; over a long stretch
    the rounding of its two ends does not matter. 0 if there is no such.

    Raises:
        UsageError: the steps overlap.
    """
    stretches: list[list[int]] = [[0]]
    gaps = [0.0]
    for i in range(1, len(samples)):
        gaps.append((clocks[i] - clocks[i - 1]).total_seconds())
        # Ranks that log at the same time may be a second apart; a clock that was set
        # back is more, as a new year is, for a log names none.
        if not -2 < gaps[i] <= samples[i].seconds + 1:
            stretches.append([])
        stretches[-1].append(i)
    stretch = max(stretches, key=len)
    elapsed = sum(gaps[i] for i in stretch[1:])
    if elapsed < LEAST_STRETCH:
        _say(
            paths,
            "the time between steps is not known and taken as 0, because no stretch "
            f"without a pause lasts {LEAST_STRETCH:g} s",
        )
        return 0.0
    spent = sum(samples[i].seconds for i in stretch[1:])
    if spent > (1 + OVERLAP) * elapsed:
        raise UsageError(
            f"{', '.join(map(str, paths))}: steps of {spent:.3g} s in {elapsed:.3g} s "
            "overlap; log them with --no-async-scheduling."
        )
    return max(0.0, elapsed - spent) / len(stretch)
