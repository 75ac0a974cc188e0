"""Draws the picture of docs/results.md from bench/results (SVG).

::

    python bench/pictures.py

Equal results give an equal file.
"""

import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import tables
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
COLOURS = {
    "adaptive": "#c0392b",
    "align": "#2471a3",
    "sglang": "#7d3c98",
    "cap": "#b7950b",
    "interval": "#7f8c8d",
    "trtllm": "#1e8449",
    "off": "#17202a",
}
FAR = 25.0
"""Per cent; what is further behind the best baseline is left out."""


def trade_off(document: tables.Document) -> Figure:
    """A column per trace: mean end-to-end time against tails, and against goodput."""
    cells = tables.traded(document)
    traces = tables.groups(cells, "trace")
    figure, axes = plt.subplots(2, len(traces), figsize=(11, 7), squeeze=False)
    for column, ((trace,), found) in enumerate(traces.items()):
        above, below = axes[0][column], axes[1][column]
        light = [cell for cell in found if cell["load"] == 0.3]
        for name in found[0]["policies"]:
            tails = (tables.tail(cell, name) for cell in found)
            mark(above, name, statistics.geometric_mean(tails), found)
            lost = min(tables.goodput_lead(cell, name) for cell in light)
            mark(below, name, 100 * lost, light)
        above.axvspan(0, tables.TAIL, color="0.95", zorder=0)
        above.set_xlim(left=0.6)
        above.set(title=trace, xlabel="TTFT p99, × align")
        below.axvline(-1, color="0.7", lw=0.8, zorder=0)
        below.set_xlabel("at 30 %: goodput − off, points, worst cell")
        for axis in (above, below):
            axis.axhline(2, color="0.7", lw=0.8, zorder=0)
            axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("mean end-to-end time over the best baseline, %")
    axes[1][0].set_ylabel("the same at 30 %")
    figure.tight_layout()
    return figure


def mark(axis: Axes, name: str, x: float, cells: list[Any]) -> None:
    """One policy or variant, unless it is far behind."""
    y = 100 * tables.mean_lead(cells, name)
    if y > FAR:
        return
    colour = next(c for key, c in COLOURS.items() if name.startswith(key))
    variant, budget = name.partition(", ")[2], name.partition("budget=")[2]
    shape = "D" if variant else "^" if budget else "o"
    size = 90 if name == "adaptive" else 25
    axis.scatter(x, y, s=size, marker=shape, color=colour, linewidths=0, zorder=3)
    label = variant or budget or name
    place = {"textcoords": "offset points", "fontsize": 6, "color": colour}
    axis.annotate(label, (x, y), (4, 3), **place)


def main() -> None:
    """Draws it."""
    mpl.rcParams.update({"font.size": 8, "svg.hashsalt": "tradeoff"})
    source = ROOT / "bench" / "results" / "traces.json"
    figure = trade_off(json.loads(source.read_text(encoding="utf-8")))
    drawn = ROOT / "docs" / "pictures" / "tradeoff.svg"
    drawn.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(drawn, bbox_inches="tight", metadata={"Date": None})
    print(drawn)


if __name__ == "__main__":
    main()
