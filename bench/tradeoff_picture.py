"""Draws docs/pictures/tradeoff.svg from bench/results/tradeoff.json."""

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from frontier_pictures import COLOURS
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "tradeoff.json"
PICTURE = ROOT / "docs" / "pictures" / "tradeoff.svg"

Point = dict[str, Any]
FAR = 0.25
"""Points that are further behind the best baseline are left out."""


def _draw(axis: Axes, points: list[Point], x: str, y: str) -> None:
    """A dot per variant: x as it is, y in per cent."""
    for point in points:
        name = point["variant"]
        colour = next(c for key, c in COLOURS.items() if name.startswith(key))
        share, budget = name.partition(", ")[2], name.partition("budget=")[2]
        axis.scatter(
            point[x],
            100 * point[y],
            s=90 if name == "adaptive" else 25,
            marker="D" if share else "^" if budget else "o",
            color=colour,
            linewidths=0,
            zorder=3,
        )
        label = share.partition(" ")[0] or (f"{budget} s" if budget else name)
        axis.annotate(
            label,
            (point[x], 100 * point[y]),
            (4, 3),
            textcoords="offset points",
            fontsize=6,
            color=colour,
        )
    axis.spines[["top", "right"]].set_visible(False)


def draw(document: dict[str, Any], path: Path) -> None:
    """Two rows of panels, a column per trace; equal documents give equal files."""
    mpl.rcParams["svg.hashsalt"] = "tradeoff"
    mpl.rcParams["font.size"] = 8
    traces = list(dict.fromkeys(point["trace"] for point in document["points"]))
    figure, axes = plt.subplots(2, len(traces), figsize=(11, 7))
    for column, trace in enumerate(traces):
        points = [point for point in document["points"] if point["trace"] == trace]
        tail, light = axes[0][column], axes[1][column]
        near = [point for point in points if point["mean"] < FAR]
        _draw(tail, near, "tail", "mean")
        tail.axvspan(0, 1.1, color="0.95", zorder=0)
        tail.axhline(2, color="0.7", lw=0.8, zorder=0)
        tail.set_xlim(left=0.6)
        tail.set_title(trace)
        tail.set_xlabel("TTFT p99, × align")
        good = [
            {**point, "goodput": 100 * point["light_goodput"]}
            for point in points
            if point["light_mean"] < FAR
        ]
        _draw(light, good, "goodput", "light_mean")
        light.axvline(-1, color="0.7", lw=0.8, zorder=0)
        light.axhline(2, color="0.7", lw=0.8, zorder=0)
        light.set_xlabel("at 30 %: goodput − off, points, worst cell")
    axes[0][0].set_ylabel("mean end-to-end time over the best baseline, %")
    axes[1][0].set_ylabel("the same at 30 %")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(json.loads(RESULT.read_text(encoding="utf-8")), PICTURE)
