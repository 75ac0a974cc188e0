# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What steps cost on a running server, from its log."""

import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
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


def read_server_logs(
    paths: Sequence[Path], ranks: int
) -> tuple[list[StepSample], float]:
    """Reads the steps that `vllm serve --enable-logging-iteration-details` logged.

    Args:
        paths: the log of each node; together they cover all ranks, of one start.
        ranks: the data parallel size.

    Returns:
        The steps, and the mean seconds between them: scheduling and output.

    Raises:
        UsageError: a file cannot be read, or steps were not logged by so many ranks.
    """
    steps: defaultdict[int, list[re.Match[str]]] = defaultdict(list)
    names, torn = ", ".join(map(str, paths)), 0
    for path in paths:
        text = _COLOUR.sub("", read_text(path, errors="replace"))
        found = [*_ITERATION.finditer(text)]
        torn += text.count("Iteration(") - len(found)
        for match in found:
            steps[int(match["number"])].append(match)
    complete = [step for _, step in sorted(steps.items()) if len(step) == ranks]
    if len(complete) * 2 <= len(steps):
        logged = statistics.mode(map(len, steps.values())) if steps else 0
        strange = f"; {torn} lines of steps are torn or of another format" * bool(torn)
        raise UsageError(
            f"{names}: most steps were logged by {logged} ranks, not by {ranks}"
            f"{strange}; start the server once, with "
            "--enable-logging-iteration-details, and give the logs of all nodes."
        )
    if left_out := torn + len(steps) - len(complete):
        print(
            f"note: {names}: left out {left_out} lines that are torn or steps that "
            f"were not logged by {ranks} ranks.",
            file=sys.stderr,
        )
    samples, clocks = [], []
    for step in complete:
        # The rank that starts its step last waits for no other.
        if seconds := min(float(each["ms"]) for each in step) / 1e3:
            prefill, decodes = (
                tuple(float(each[name]) for each in step)
                for name in ("prefill", "decodes")
            )
            samples.append(StepSample(seconds, prefill, decodes))
            clocks.append(step[0]["clock"])
    return samples, _host_seconds(names, samples, clocks)


WINDOW_S = 10.0
"""The clock of a log counts whole seconds: so many of them tell enough."""
OVERLAP = 0.25
"""Share of a window by which its clocks cannot be wrong."""


def _host_seconds(
    names: str, samples: Sequence[StepSample], clocks: Sequence[str]
) -> float:
    """Time between two steps, in the median of the windows; 0 if there are too few.

    Pauses, or a clock that was set, may be in less than half of them.

    Raises:
        UsageError: the steps overlap.
    """
    windows = defaultdict[str, list[float]](list)
    for sample, clock in zip(samples, clocks, strict=True):
        windows[clock[:-1]].append(sample.seconds)
    whole = [*windows.values()][1:-1]
    if not whole:
        print(
            f"note: {names}: the time between steps is not known and taken as 0, "
            f"because the log has no whole {WINDOW_S:g} s.",
            file=sys.stderr,
        )
        return 0.0
    busy = statistics.median(map(sum, whole))
    if busy > (1 + OVERLAP) * WINDOW_S:
        raise UsageError(
            f"{names}: steps of {busy:.3g} s in {WINDOW_S:g} s overlap; log them with "
            "--no-async-scheduling."
        )
    free = ((WINDOW_S - sum(each)) / len(each) for each in whole)
    return max(0.0, statistics.median(free))
