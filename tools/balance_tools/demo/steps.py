"""What each rank did, step by step, as a server logged it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from balance_tools.errors import ToolError

# The name of the process has the rank; later releases log from the front-end, with its
# number.
_LINE = re.compile(
    r"^(?P<end>[\d.]+) "
    r"(?:EngineCore_DP(?P<process>\d+) .*|\S+ Engine (?P<engine>\d+): )"
    r"Iteration\(\d+\): "
    r"\d+ context requests, (?P<prefill>\d+) context tokens, "
    r"(?P<decodes>\d+) generation requests, \d+ generation tokens, "
    r"iteration elapsed time: (?P<ms>[\d.]+) ms(?! \(dummy\))",
    re.MULTILINE,
)
PAUSE_S = 1.0
"""A longer time between two steps is one without requests."""


@dataclass(frozen=True)
class Step:
    """One step of one rank; times are in seconds since the first step of any."""

    rank: int
    start: float
    end: float
    prefill: int
    """Prompt tokens that the rank computed."""
    decodes: int
    """Requests that it generated a token for."""
    own_s: float
    """How long the step would have taken without the other ranks."""

    @property
    def waits_s(self) -> float:
        """How long the rank waited for the slowest one."""
        return max(0.0, self.end - self.start - self.own_s)


def read_steps(log: Path, device: Mapping[str, float]) -> tuple[Step, ...]:
    """The steps of a log whose lines begin with a time and the name of the process.

    Args:
        log: Written with `--enable-logging-iteration-details`.
        device: The constants t0, a, b and c of the emulated device, in seconds.

    Raises:
        ToolError: There is no step in it.
    """
    steps = []
    for found in _LINE.finditer(log.read_text(encoding="utf-8", errors="replace")):
        end, seconds = float(found["end"]), float(found["ms"]) / 1000
        prefill, decodes = int(found["prefill"]), int(found["decodes"])
        own = device["t0"] + device["a"] * decodes
        if prefill:
            own += device["c"] + device["b"] * prefill
        rank = int(found["process"] or found["engine"])
        steps.append(Step(rank, end - seconds, end, prefill, decodes, own))
    if not steps:
        raise ToolError(
            f"{log}: expected the steps of the ranks, found none; this is a defect of "
            "the demo: does vLLM write them in another form?"
        )
    first = min(step.start for step in steps)
    moved = (replace(s, start=s.start - first, end=s.end - first) for s in steps)
    return tuple(sorted(moved, key=lambda step: (step.start, step.rank)))


def waiting_share(steps: Sequence[Step]) -> float:
    """Which share of the time in steps the ranks waited for the slowest one."""
    spent = sum(step.end - step.start for step in steps)
    return sum(step.waits_s for step in steps) / spent


def between_steps_s(steps: Sequence[Step]) -> float:
    """The median time between two steps of a rank: this machine's, not the device's."""
    gaps = []
    for rank in {step.rank for step in steps}:
        mine = [step for step in steps if step.rank == rank]
        gaps += [after.start - step.end for step, after in pairwise(mine)]
    return statistics.median([gap for gap in gaps if gap < PAUSE_S] or [0.0])
