# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the ranks did, step by step, from a log with exact times."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..step_time.learned import learn
from ..step_time.model import Loads
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
    """How long the rank waited for the slowest one, by what steps cost."""


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
    """A rank waits for what its step took longer than its own part would."""
    together: defaultdict[int, list[Step]] = defaultdict(list)
    for step in steps:
        together[step.number].append(step)
    samples = [
        StepSample(
            min(step.end - step.start for step in each),
            tuple(float(step.prefill) for step in each),
            tuple(float(step.decodes) for step in each),
        )
        for each in together.values()
    ]
    if all(any(sample.prefill) for sample in samples):
        return steps
    cost = learn(samples)
    found = []
    for step in steps:
        own = Loads((step.prefill,), (step.decodes,), (0,))
        busy = cost.step_seconds(own) if step.prefill or step.decodes else 0.0
        found.append(replace(step, waits_s=max(0.0, step.end - step.start - busy)))
    return found


def waiting_share(steps: Sequence[Step]) -> float:
    """Which share of the time in steps the ranks waited for the slowest one."""
    spent = sum(step.end - step.start for step in steps)
    return sum(step.waits_s for step in steps) / spent if spent else 0.0
