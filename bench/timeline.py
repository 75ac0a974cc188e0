# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Draws the same ten seconds of four ranks under every policy, for docs/balance.md.

Run it with the interpreter of an environment that has this vLLM::

    python bench/timeline.py [FOLDER]

It writes one SVG file per policy, by default to docs/pictures.
"""

import sys
from html import escape
from pathlib import Path

from scenarios import CHAT
from vllm.benchmarks.dp_balance import timeline
from vllm.benchmarks.dp_balance.page import STATE_COLOURS
from vllm.benchmarks.dp_balance.policies import OWN

START, SECONDS, SEED = 100.0, 10.0, 0
WIDTH, LEFT = timeline.WIDTH, timeline.LEFT
HEAD, FOOT = 44, 22
COLOURS = {**STATE_COLOURS, "wait": "#dddddd"}


def picture(policy: str) -> str:
    """The ranks' bands with a heading, a legend and a time axis, as an SVG file."""
    steps = timeline.record(CHAT, policy, SEED, START, SECONDS)
    bands = timeline.draw(steps, START, SECONDS, CHAT.cost)
    height = timeline.height(CHAT.limits.ranks)
    prefills = sum(any(step.loads.prefill) for step in steps)
    heading = f"{policy}: {len(steps)} steps, {prefills} of them with a prompt"
    legend, x = [], LEFT
    for state, meaning in timeline.STATES.items():
        legend.append(
            f'<path class="{state}" d="M{x} 24h10v10h-10z"/>'
            f'<text x="{x + 14}" y="33">{escape(meaning)}</text>'
        )
        x += 34 + 6.2 * len(meaning)
    axis = [
        f'<text x="{LEFT + second * (WIDTH - LEFT) / SECONDS:.0f}" '
        f'y="{HEAD + height + 14}">{second} s</text>'
        for second in range(int(SECONDS))
    ]
    style = "".join(f".{s}{{fill:{colour}}}" for s, colour in COLOURS.items())
    total = HEAD + height + FOOT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}">'
        f"<style>text{{font:12px sans-serif;fill:#222}}{style}</style>"
        f'<rect width="{WIDTH}" height="{total}" fill="#ffffff"/>'
        f'<text x="{LEFT}" y="14" font-weight="bold">{escape(heading)}</text>'
        f"{''.join(legend)}{''.join(axis)}"
        f'<svg y="{HEAD}" width="{WIDTH}" height="{height}">{bands}</svg></svg>\n'
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
