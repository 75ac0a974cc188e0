# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What each rank did in a stretch of a run: a drawing, one band per rank."""

from collections import defaultdict
from collections.abc import Sequence

from .loop import StepRecord
from .scenario import Scenario, simulate
from .step_time.model import CostModel, Loads

MAX_RANKS = 16
"""More bands are not told apart."""

STATES = {
    "prefill": "computes a prompt (and decodes)",
    "decode": "decodes only",
    "held": "decodes, holds a prompt back",
    "empty": "has no request",
    "wait": "waits for the slowest rank",
}
"""CSS classes and what they mean."""

WIDTH, LEFT = 1000, 60
"""Of a drawing, and of the names of the ranks in it."""

_BAND, _GAP = 18, 4


def height(ranks: int) -> int:
    """Of a drawing of so many ranks."""
    return max(1, min(MAX_RANKS, ranks)) * (_BAND + _GAP)


def record(
    scenario: Scenario, policy: str, seed: int, start: float, seconds: float
) -> list[StepRecord]:
    """The steps of a run that overlap with a stretch of virtual time."""
    steps: list[StepRecord] = []

    def keep(step: StepRecord) -> None:
        if step.end > start and step.end - step.seconds < start + seconds:
            steps.append(step)

    simulate(scenario, policy, seed, on_step=keep)
    return steps


def _state(step: StepRecord, rank: int) -> str:
    if step.loads.prefill[rank]:
        return "prefill"
    if step.held[rank]:
        return "held"
    return "decode" if step.loads.decodes[rank] else "empty"


def _own_seconds(cost: CostModel, step: StepRecord, rank: int) -> float:
    """How long the step would last if the other ranks had nothing to do."""
    only = slice(rank, rank + 1)
    loads = step.loads
    own = Loads(
        loads.prefill[only],
        loads.decodes[only],
        loads.context[only],
        loads.attended[only],
    )
    return min(step.seconds, cost.step_seconds(own))


def draw(
    steps: Sequence[StepRecord], start: float, seconds: float, cost: CostModel
) -> str:
    """An SVG element with a band per rank, time from left to right."""
    ranks = min(MAX_RANKS, len(steps[0].held)) if steps else 0
    paths: defaultdict[str, list[str]] = defaultdict(list)
    scale = (WIDTH - LEFT) / seconds
    for step in steps:
        left = LEFT + max(0.0, step.end - step.seconds - start) * scale
        right = min(WIDTH, LEFT + (step.end - start) * scale)
        for rank in range(ranks):
            top = rank * (_BAND + _GAP)
            wait = step.seconds - _own_seconds(cost, step, rank)
            until = LEFT + (step.end - wait - start) * scale
            until = min(right, max(left, until))
            state = _state(step, rank)
            paths[state].append(_box(left, top, until))
            if until < right:
                paths["wait"].append(_box(until, top, right))
    labels = "".join(
        f'<text x="0" y="{rank * (_BAND + _GAP) + _BAND - 5}">rank {rank}</text>'
        for rank in range(ranks)
    )
    bands = "".join(
        f'<path class="{state}" d="{"".join(boxes)}"/>'
        for state, boxes in paths.items()
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {height(ranks)}" role="img" '
        f'aria-label="timeline of the ranks">{labels}{bands}</svg>'
    )


def _box(left: float, top: int, right: float) -> str:
    width = round(right, 1) - round(left, 1)
    return f"M{left:.1f} {top}h{width:.1f}v{_BAND}h{-width:.1f}z"
