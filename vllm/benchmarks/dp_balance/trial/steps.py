# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the ranks did, step by step, from a log with exact times."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..step_time.model import CostModel, Loads
from ..step_time.steps import ITERATION, StepSample

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
    """How long the rank waited for the slowest one, by the cost model."""


def logging_config(steps: Path) -> dict[str, object]:
    """VLLM's configuration of logging, and a file with exact times and ranks.

    vLLM's own lines have whole seconds, and lines of several ranks may mix.
    """
    text = "%(levelname)s %(asctime)s [%(fileinfo)s:%(lineno)d] %(message)s"
    own = {"class": "logging.StreamHandler", "formatter": "vllm"}
    file = {"class": "logging.FileHandler", "filename": str(steps), "formatter": "file"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "vllm": {
                "class": "vllm.logging_utils.NewLineFormatter",
                "datefmt": "%m-%d %H:%M:%S",
                "format": text,
            },
            "file": {"format": "%(created).4f %(processName)s %(message)s"},
        },
        "handlers": {"vllm": own | {"stream": "ext://sys.stdout"}, "file": file},
        "loggers": {
            "vllm": {"handlers": ["vllm", "file"], "level": "INFO", "propagate": False}
        },
    }


def read_steps(log: Path, cost: CostModel | None) -> tuple[Step, ...]:
    """The steps of a log that `logging_config` made; none if it has none.

    Args:
        log: the file.
        cost: says how long a step would have taken without the other ranks; without
            it, nobody is said to wait.
    """
    if not log.exists():
        return ()
    steps = []
    for found in _LINE.finditer(log.read_text(encoding="utf-8", errors="replace")):
        end, seconds = float(found["end"]), float(found["ms"]) / 1000
        prefill, decodes = int(found["prefill"]), int(found["decodes"])
        own = seconds
        if cost is not None:
            loads = Loads((prefill,), (decodes,), (0,))
            own = cost.step_seconds(loads) if prefill or decodes else 0.0
        steps.append(
            Step(
                rank=int(found["process"] or found["engine"]),
                number=int(found["number"]),
                start=end - seconds,
                end=end,
                prefill=prefill,
                decodes=decodes,
                waits_s=max(0.0, seconds - own),
            )
        )
    if not steps:
        return ()
    first = min(step.start for step in steps)
    moved = (replace(s, start=s.start - first, end=s.end - first) for s in steps)
    return tuple(sorted(moved, key=lambda step: (step.start, step.rank)))


def spaced(steps: Sequence[Step], ranks: int) -> list[StepSample]:
    """Steps by the time since the one before, where logged times overlap.

    With asynchronous scheduling a step is logged from when it was asked for.
    """
    numbered: defaultdict[int, list[Step]] = defaultdict(list)
    for step in steps:
        numbered[step.number].append(step)
    found = []
    for number, mine in numbered.items():
        before = numbered.get(number - 1, [])
        if not len(mine) == len(before) == ranks or not any(b.decodes for b in before):
            continue
        ends = (max(step.end for step in each) for each in (mine, before))
        found.append(
            StepSample(
                next(ends) - next(ends),
                tuple(float(step.prefill) for step in mine),
                tuple(float(step.decodes) for step in mine),
            )
        )
    return found


def waiting_share(steps: Sequence[Step]) -> float:
    """Which share of the time in steps the ranks waited for the slowest one."""
    spent = sum(step.end - step.start for step in steps)
    return sum(step.waits_s for step in steps) / spent if spent else 0.0
