# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What steps cost on a running server, from its log."""

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError


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


# Without the name of the rank: when several ranks write at once, it comes apart from
# the rest of the line. Ranks are alike to the cost model, so it is not needed. Later
# releases log from the front-end, which numbers the engines.
_ITERATION = re.compile(
    r"(?P<clock>\d\d-\d\d \d\d:\d\d:\d\d) \[\S+\] (?:Engine \d+: )?"
    r"Iteration\((?P<number>\d+)\): "
    r"\d+ context requests, (?P<prefill>\d+) context tokens, "
    r"(?P<decodes>\d+) generation requests, \d+ generation tokens, "
    r"iteration elapsed time: (?P<ms>[\d.]+) ms"
)


def read_server_logs(paths: Sequence[Path], ranks: int) -> ServerLog:
    """Reads the steps that `vllm serve --enable-logging-iteration-details` logged.

    Args:
        paths: the log of each node; together they cover all ranks, of one start.
        ranks: the data parallel size.

    Raises:
        UsageError: a file cannot be read, or steps were not logged by so many ranks.
    """
    steps: defaultdict[int, list[_Iteration]] = defaultdict(list)
    for path in paths:
        for match in _ITERATION.finditer(_read(path)):
            steps[int(match["number"])].append(
                _Iteration(
                    seconds=float(match["ms"]) / 1e3,
                    prefill=float(match["prefill"]),
                    decodes=float(match["decodes"]),
                    # The log names no year; a leap year has all days.
                    clock=datetime.strptime(
                        f"2024-{match['clock']}", "%Y-%m-%d %H:%M:%S"
                    ),
                )
            )
    complete = [step for _, step in sorted(steps.items()) if len(step) == ranks]
    if len(complete) * 2 <= len(steps):
        found = statistics.mode(map(len, steps.values())) if steps else 0
        raise UsageError(
            f"{', '.join(map(str, paths))}: most steps were logged by {found} ranks, "
            f"not by {ranks}; start the server once, with "
            "--enable-logging-iteration-details, and give the logs of all nodes."
        )
    samples = [
        StepSample(
            # The rank that starts its step last waits for no other.
            min(iteration.seconds for iteration in step),
            tuple(iteration.prefill for iteration in step),
            tuple(iteration.decodes for iteration in step),
        )
        for step in complete
    ]
    return ServerLog(samples, _host_seconds(samples, [s[0].clock for s in complete]))


def _host_seconds(samples: Sequence[StepSample], clocks: Sequence[datetime]) -> float:
    """Mean time between two steps, in the longest stretch without a pause.

    The clocks are whole seconds, so a single gap tells nothing; over a long stretch
    the rounding of its two ends does not matter.
    """
    stretches = [[0]]
    for i in range(1, len(samples)):
        gap = (clocks[i] - clocks[i - 1]).total_seconds()
        if gap > samples[i].seconds + 1:
            stretches.append([])
        stretches[-1].append(i)
    stretch = max(stretches, key=len)
    elapsed = (clocks[stretch[-1]] - clocks[stretch[0]]).total_seconds()
    beside = elapsed - sum(samples[i].seconds for i in stretch[1:])
    return max(0.0, beside / len(stretch))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
