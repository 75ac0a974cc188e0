# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What steps cost on a running server, from its log."""

import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
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


OVERLAP = 0.25
"""Share of a stretch by which its clocks cannot be wrong."""
LEAST_STRETCH = 10.0
"""Seconds: the clock of a log counts whole ones."""


def _host_seconds(
    names: str, samples: Sequence[StepSample], clocks: Sequence[str]
) -> float:
    """Mean time between two steps, in the longest stretch without a pause.

    The clocks are whole seconds, so a single gap tells nothing; over a long stretch
    the rounding of its two ends does not matter. 0 if there is no such.

    Raises:
        UsageError: the steps overlap.
    """
    longest = busy = found = 0.0
    spent = elapsed = count = 0.0
    before = None
    for sample, text in zip(samples, clocks, strict=True):
        try:
            clock = datetime.fromisoformat(f"2024-{text}")  # a log names no year
        except ValueError:
            continue
        gap = (clock - before).total_seconds() if before else -9.0
        before = clock
        # Ranks that log at the same time may be a second apart; a clock that was set
        # back is more, as a new year is.
        if not -2 < gap <= sample.seconds + 1:
            spent = elapsed = count = 0.0
            continue
        spent, elapsed, count = spent + sample.seconds, elapsed + gap, count + 1
        if elapsed > longest:
            longest, found, busy = elapsed, (elapsed - spent) / count, spent
    if longest < LEAST_STRETCH:
        print(
            f"note: {names}: the time between steps is not known and taken as 0, "
            f"because no stretch without a pause lasts {LEAST_STRETCH:g} s.",
            file=sys.stderr,
        )
        return 0.0
    if busy > (1 + OVERLAP) * longest:
        raise UsageError(
            f"{names}: steps of {busy:.3g} s in {longest:.3g} s overlap; log them with "
            "--no-async-scheduling."
        )
    return max(0.0, found)
