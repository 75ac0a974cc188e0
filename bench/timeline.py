# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Draws the same ten seconds of four ranks under every policy, for docs/balance.md.

Run it with the interpreter of an environment that has this vLLM::

    python bench/timeline.py [FOLDER]

It writes one SVG file per policy, by default to docs/pictures.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path

from scenarios import CHAT
from vllm.benchmarks.dp_balance.loop import StepRecord
from vllm.benchmarks.dp_balance.policies import OWN
from vllm.benchmarks.dp_balance.scenario import Scenario, simulate
from vllm.benchmarks.dp_balance.step_time.model import CostModel, Loads

STATES = {
    "prefill": "computes a prompt (and decodes)",
    "decode": "decodes only",
    "held": "decodes, holds a prompt back",
    "empty": "has no request",
    "wait": "waits for the slowest rank",
}
"""CSS classes and what they mean."""

COLOURS = {
    "prefill": "#ee7733",
    "decode": "#33659b",
    "held": "#66aadd",
    "empty": "#999999",
    "wait": "#dddddd",
}

START, SECONDS, SEED = 100.0, 10.0, 0
WIDTH, LEFT = 1000, 60
"""Of a drawing, and of the names of the ranks in it."""

HEAD, FOOT = 44, 22
_BAND, _GAP = 18, 4


def height(ranks: int) -> int:
    """Of a drawing of so many ranks."""
    return ranks * (_BAND + _GAP)


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
    ranks = len(steps[0].held)
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


def picture(policy: str) -> str:
    """The ranks' bands with a heading, a legend and a time axis, as an SVG file."""
    steps = record(CHAT, policy, SEED, START, SECONDS)
    bands = draw(steps, START, SECONDS, CHAT.cost)
    bands_height = height(CHAT.limits.ranks)
    prefills = sum(any(step.loads.prefill) for step in steps)
    heading = f"{policy}: {len(steps)} steps, {prefills} of them with a prompt"
    legend, x = [], LEFT
    for state, meaning in STATES.items():
        legend.append(
            f'<path class="{state}" d="M{x} 24h10v10h-10z"/>'
            f'<text x="{x + 14}" y="33">{escape(meaning)}</text>'
        )
        x += 34 + 6.2 * len(meaning)
    axis = [
        f'<text x="{LEFT + second * (WIDTH - LEFT) / SECONDS:.0f}" '
        f'y="{HEAD + bands_height + 14}">{second} s</text>'
        for second in range(int(SECONDS))
    ]
    style = "".join(f".{s}{{fill:{colour}}}" for s, colour in COLOURS.items())
    total = HEAD + bands_height + FOOT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}">'
        f"<style>text{{font:12px sans-serif;fill:#222}}{style}</style>"
        f'<rect width="{WIDTH}" height="{total}" fill="#ffffff"/>'
        f'<text x="{LEFT}" y="14" font-weight="bold">{escape(heading)}</text>'
        f"{''.join(legend)}{''.join(axis)}"
        f'<svg y="{HEAD}" width="{WIDTH}" height="{bands_height}">{bands}</svg></svg>\n'
    )


def main() -> None:
    """Writes the pictures."""
    docs = Path(__file__).parents[1] / "docs"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else docs / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    for policy in OWN:
        path = folder / f"{policy}.svg"
        path.write_text(picture(policy), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
