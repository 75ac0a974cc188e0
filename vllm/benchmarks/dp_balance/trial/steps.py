# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the ranks did, step by step, from a log with exact times."""

import copy
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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

# The name of the process has the rank; later releases log from the front-end, with its
# number.
_LINE = re.compile(
    r"^(?P<end>\d{1,12}\.\d+) "
    r"(?:EngineCore_DP(?P<process>\d+) .*|\S+ Engine (?P<engine>\d+): )" + ITERATION,
    re.MULTILINE,
)


@dataclass(frozen=True)
class Step:
    """One step of one rank; times are in seconds since the first step of any."""

    rank: int
    number: int
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
    lines = [*_LINE.finditer(text)]
    loads = defaultdict[int, int](int)
    for found in lines:
        loads[int(found["number"])] += int(found["prefill"]) + int(found["decodes"])
    steps: list[Step] = []
    before: dict[int, Step] = {}
    for found in lines:
        end, rank = float(found["end"]), int(found["process"] or found["engine"])
        number, last = int(found["number"]), before.get(rank)
        start = end - float(found["ms"]) / 1000
        if last is not None:
            follows = number == last.number + 1 and loads[last.number]
            start = last.end if follows else max(start, last.end)
        loads_of = (int(found[name]) for name in ("prefill", "decodes", "tokens"))
        before[rank] = Step(rank, number, start, end, *loads_of)
        steps.append(before[rank])
    first = min((step.start for step in steps), default=0.0)
    moved = (replace(s, start=s.start - first, end=s.end - first) for s in steps)
    return _with_waits(
        sorted(_timed([*moved]), key=lambda step: (step.start, step.rank))
    )


CLEARLY = 0.2
"""Of a correlation; on CPU ranks it was 0.8, and up to 0.4 with the other step."""


def _timed(steps: Sequence[Step]) -> list[Step]:
    """The steps with the times in which they were computed.

    With asynchronous scheduling a step is logged when the next one was launched. Where
    that takes as long as the step, the time that ends then is of the next one: of those
    two the one is taken whose longest prompts explain the times best.
    """
    longest = _longest(steps)
    spans = {(step.rank, step.number): (step.start, step.end) for step in steps}
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


UNUSUAL = 3.0
"""By how much shorter or longer than usual a step is no decode step."""


def decode_seconds(turns: Iterable[Sequence[Step]]) -> dict[str, float] | None:
    """What a step takes that only decodes: `alone`, and `each` more by token.

    Counted are the tokens of the fullest rank. By least squares, without the steps
    that take three times as long as is usual, or a third: they paused, or the log has
    the time of another step. None unless their tokens differ.

    Args:
        turns: the steps of each.
    """
    points: list[tuple[int, float]] = []
    for steps in turns:
        longest, fullest = _longest(steps), defaultdict[int, int](int)
        for step in steps:
            fullest[step.number] = max(fullest[step.number], step.tokens)
        for step in steps:
            if fullest[step.number] and not longest[step.number]:
                points.append((fullest[step.number], step.end - step.start))
    usual = statistics.median([seconds for _, seconds in points] or [0.0])
    points = [x for x in points if usual / UNUSUAL <= x[1] <= usual * UNUSUAL]
    tokens, seconds = zip(*points, strict=True) if points else ((), ())
    if len({*tokens}) < 2:
        return None
    each = max(0.0, statistics.linear_regression(tokens, seconds).slope)
    alone = statistics.fmean(seconds) - each * statistics.fmean(tokens)
    return {"alone": max(0.0, alone), "each": each}


def waiting_share(steps: Sequence[Step]) -> float | None:
    """Which share of the time in steps the ranks waited for the slowest one.

    None if that cannot be known.
    """
    spent = sum(step.end - step.start for step in steps)
    waits = [step.waits_s for step in steps if step.waits_s is not None]
    return sum(waits) / spent if spent and len(waits) == len(steps) else None
