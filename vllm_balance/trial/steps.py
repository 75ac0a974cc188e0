# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the ranks did, step by step, from a log with exact times."""

import copy
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

ITERATION = (
    r"Iteration\((?P<number>\d{1,15})\): "
    r"\d+ context requests, (?P<prefill>\d{1,9}) context tokens, "
    r"(?P<decodes>\d{1,9}) generation requests, "
    r"(?P<tokens>\d{1,9}) generation tokens, "
    r"iteration elapsed time: (?P<ms>\d{1,9}(?:\.\d+)?) ms"
)
"""What vLLM says of a step, as a regular expression."""

# The name of the process has the rank, unless there is one; later releases log from the
# front-end, with its number.
_LINE = re.compile(
    r"^(?P<end>\d{1,12}\.\d+) "
    r"(?:EngineCore(?:_DP(?P<process>\d+))? .*|\S+ Engine (?P<engine>\d+): )"
    + ITERATION,
    re.MULTILINE,
)
_APART = 10**15
"""Added to the steps of each rank that counts for itself: more than any has."""


@dataclass(frozen=True)
class Step:
    """One step of one rank; times are in seconds since the epoch."""

    rank: int
    number: int
    """The same for all ranks that take a step together."""
    start: float
    end: float
    prefill: int
    """Prompt tokens that the rank computed."""
    decodes: int
    """Requests that it generated a token for."""
    tokens: int
    """Tokens that it computed for them: one for each, and its drafts."""
    waits_s: float | None = None
    """How long the rank waited for the slowest one, about; None if not known."""


def logging_config(steps: Path) -> str:
    """How vLLM logs by default, as JSON, and a file with exact times and ranks.

    vLLM's own lines have whole seconds, and lines of several ranks may mix.
    """
    from vllm.logger import DEFAULT_LOGGING_CONFIG

    config: dict[str, Any] = copy.deepcopy(DEFAULT_LOGGING_CONFIG)
    text = "%(created).4f %(processName)s %(message)s"
    config["formatters"]["file"] = {"format": text}
    file = {"class": "logging.FileHandler", "filename": str(steps), "formatter": "file"}
    config["handlers"] |= {"file": file}
    config["loggers"]["vllm"] |= {"handlers": ["vllm", "file"], "level": "INFO"}
    return json.dumps(config)


def read_steps(log: Path) -> list[Step]:
    """The steps of a log that `logging_config` made; none if it has none.

    The log says how long the engine waited for the device. That is too long with
    asynchronous scheduling, where a step is asked for early, and next to nothing where
    launching one takes as long as the step, as on a CPU. So a step begins where the
    rank's step before it ended, unless that step was one of ranks that had nothing to
    do: they may have paused then.
    """
    if not log.exists():
        return []
    text = log.read_text(encoding="utf-8", errors="replace")
    logged = [_logged(found) for found in _LINE.finditer(text)]
    if not _in_lock_step(logged):
        logged = [replace(s, number=s.number + _APART * s.rank) for s in logged]
    loads = defaultdict[int, int](int)
    for step in logged:
        loads[step.number] += step.prefill + step.decodes
    steps: list[Step] = []
    before: dict[int, Step] = {}
    followed: set[tuple[int, int]] = set()
    for step in logged:
        rank, number, start = step.rank, step.number, step.start
        last = before.get(rank)
        if last is not None:
            follows = number == last.number + 1 and loads[last.number]
            start = last.end if follows else max(start, last.end)
            if follows and loads[number]:
                followed.add((rank, number))
        before[rank] = replace(step, start=start)
        steps.append(before[rank])
    timed = _timed(steps, followed)
    return _with_waits(sorted(timed, key=lambda step: (step.start, step.rank)))


def _logged(found: re.Match[str]) -> Step:
    """The step of a line, which began when the log says."""
    end, rank = float(found["end"]), int(found["process"] or found["engine"] or 0)
    loads = (int(found[name]) for name in ("prefill", "decodes", "tokens"))
    start = end - float(found["ms"]) / 1000
    return Step(rank, int(found["number"]), start, end, *loads)


def _in_lock_step(steps: Sequence[Step]) -> bool:
    """Whether steps of one number end together on all ranks, as of a MoE model.

    Those of dense ranks drift apart, for each counts only what it computed itself.
    """
    ends = defaultdict[int, list[float]](list)
    by_rank = defaultdict[int, list[float]](list)
    for step in steps:
        ends[step.number].append(step.end)
        by_rank[step.rank].append(step.end)
    lasts = [b - a for each in by_rank.values() for a, b in pairwise(each)]
    apart = [max(each) - min(each) for each in ends.values() if len(each) > 1]
    if not (lasts and apart):
        return True
    return statistics.median(apart) < statistics.median(lasts)


UNUSUAL = 3.0
"""Times as long as steps like it, or as short: with a pause, or the time of another."""
CLEARLY = 0.05
"""Of a correlation: by so much another step's must be better than its own."""


def _timed(steps: Sequence[Step], followed: Set[tuple[int, int]]) -> list[Step]:
    """The steps with the times in which they were computed.

    With asynchronous scheduling a step is logged when the next one was launched. Where
    that takes as long as the step, the time that ends then is of the next one: of those
    two the one is taken whose longest prompts explain the times best. Steps behind a
    pause have no time then, and are left out: also behind a step that was logged at
    once, as there was no next one to launch.

    Args:
        steps: with the times that end where they are logged.
        followed: rank and number of those whose rank had a step right before.
    """
    longest = _longest(steps)
    usual = statistics.median([step.end - step.start for step in steps] or [0.0])
    at_once = {
        (step.rank, step.number)
        for step in steps
        if step.end - step.start < usual / UNUSUAL
    } & followed
    known = {
        (rank, number)
        for rank, number in followed - at_once
        if (rank, number - 1) not in at_once
    }
    spans = {
        (step.rank, step.number): (step.start, step.end)
        for step in steps
        if (step.rank, step.number) in known
    }
    explained = []
    for later in (0, 1):
        pairs = [
            (end - start, longest[number + later])
            for (_, number), (start, end) in spans.items()
            if number + later in longest
        ]
        seconds, tokens = zip(*pairs, strict=True) if pairs else ((), ())
        varies = len({*seconds}) > 1 and len({*tokens}) > 1
        explained.append(statistics.correlation(seconds, tokens) if varies else 0.0)
    if explained[1] < max(0.0, explained[0]) + CLEARLY:
        return [*steps]
    found = ((step, spans.get((step.rank, step.number - 1))) for step in steps)
    return [replace(step, start=at[0], end=at[1]) for step, at in found if at]


def _longest(steps: Iterable[Step]) -> dict[int, int]:
    """The prompt tokens of the rank that had most, by the number of the step."""
    longest: dict[int, int] = {}
    for step in steps:
        longest[step.number] = max(longest.get(step.number, 0), step.prefill)
    return longest


def _with_waits(steps: list[Step]) -> list[Step]:
    """What prompts add to a step, a rank waits for but for its share of the longest.

    That leaves out what any prompt costs, whatever its length. Not known unless some
    steps have no prompt.
    """
    longest = _longest(steps)
    decoding = [step.end - step.start for step in steps if not longest[step.number]]
    usual = statistics.median(decoding) if decoding else None
    found = []
    for step in steps:
        most, waits_s = longest[step.number], None
        if usual is not None:
            added = max(0.0, step.end - step.start - usual)
            waits_s = added * (1 - step.prefill / most) if most else 0.0
        found.append(replace(step, waits_s=waits_s))
    return found


def waiting_share(steps: Sequence[Step]) -> float | None:
    """Which share of the time in steps the ranks waited for the slowest one.

    None if that cannot be known.
    """
    spent = sum(step.end - step.start for step in steps)
    waits = [step.waits_s for step in steps if step.waits_s is not None]
    return sum(waits) / spent if spent and len(waits) == len(steps) else None
