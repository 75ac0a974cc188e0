# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the ranks did, step by step, from a log with exact times."""

import copy
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..step_time.steps import ITERATION

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
    waits_s: float = 0.0
    """How long the rank waited for the slowest one, about."""


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

    With asynchronous scheduling a step is logged from when it was asked for; here it
    begins when the rank's step before it ends.
    """
    if not log.exists():
        return []
    steps, ends = [], defaultdict[int, float](float)
    for found in _LINE.finditer(log.read_text(encoding="utf-8", errors="replace")):
        end, rank = float(found["end"]), int(found["process"] or found["engine"])
        steps.append(
            Step(
                rank,
                int(found["number"]),
                max(end - float(found["ms"]) / 1000, ends[rank]),
                end,
                int(found["prefill"]),
                int(found["decodes"]),
            )
        )
        ends[rank] = end
    first = min((step.start for step in steps), default=0.0)
    moved = (replace(s, start=s.start - first, end=s.end - first) for s in steps)
    return _with_waits(sorted(moved, key=lambda step: (step.start, step.rank)))


def _with_waits(steps: list[Step]) -> list[Step]:
    """What prompts add to a step, a rank waits for but for its share of the longest.

    That leaves out what any prompt costs, whatever its length.
    """
    longest = defaultdict[int, int](int)
    for step in steps:
        longest[step.number] = max(longest[step.number], step.prefill)
    decoding = [step.end - step.start for step in steps if not longest[step.number]]
    usual = statistics.median(decoding or [math.inf])
    found = []
    for step in steps:
        added = max(0.0, step.end - step.start - usual)
        most = longest[step.number]
        waits_s = added * (1 - step.prefill / most) if most else 0.0
        found.append(replace(step, waits_s=waits_s))
    return found


def waiting_share(steps: Sequence[Step]) -> float:
    """Which share of the time in steps the ranks waited for the slowest one."""
    spent = sum(step.end - step.start for step in steps)
    return sum(step.waits_s for step in steps) / spent if spent else 0.0
