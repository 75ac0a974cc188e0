"""The demo's picture: what the ranks did in the same ten seconds, and the result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from balance_tools.demo.load import STEADY, Run, Step, waiting_share

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

PROMPT, TOKENS, WAITS = "#ee7733", "#33659b", "#d8d8d8"
FROM_S, SECONDS = 10.0, 10.0
"""Which ten seconds: after the first ten, in which the server fills up."""
FIGURES = (
    ("output tokens per second", STEADY, 1.0),
    ("ms between tokens: less is better", "mean_tpot_ms", 1.0),
    ("seconds a request takes: less is better", "mean_e2el_ms", 1e-3),
    ("seconds to first token, median: the price", "median_ttft_ms", 1e-3),
)


def plot(runs: Sequence[Run], path: Path) -> Path:
    """Draw the ranks' bands on the left, one figure below the other on the right.

    Returns:
        The path of the PNG.
    """
    figure = plt.figure(figsize=(13, 6.4), layout="constrained")
    halves = figure.add_gridspec(1, 2, width_ratios=(2.6, 1))
    left = figure.add_subfigure(halves[0])
    right = figure.add_subfigure(halves[1])
    bands = left.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, run in zip(bands, runs, strict=True):
        _bands(axes, run)
    bands[-1].set_xlabel("seconds")
    left.suptitle("What four ranks do in the same ten seconds", fontsize=13)
    handles = [
        Patch(color=PROMPT, label="computes a prompt"),
        Patch(color=TOKENS, label="generates tokens only"),
        Patch(color=WAITS, label="waits for the slowest rank"),
    ]
    left.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    charts = right.subplots(len(FIGURES), 1)
    right.suptitle("The same requests", fontsize=13)
    for axes, (title, name, scale) in zip(charts, FIGURES, strict=True):
        _bars(axes, runs, title, [run.bench[name] * scale for run in runs])
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _bands(axes: Axes, run: Run) -> None:
    ranks = sorted({step.rank for step in run.steps})
    for row, rank in enumerate(ranks):
        mine = [
            step
            for step in run.steps
            if step.rank == rank and step.end > FROM_S and step.start < FROM_S + SECONDS
        ]
        for colour, parts in _parts(mine).items():
            axes.broken_barh(parts, (row - 0.4, 0.8), facecolors=colour, linewidth=0)
    axes.set_xlim(0, SECONDS)
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.set_title(
        f"balance {run.policy}: in the whole run the ranks wait "
        f"{waiting_share(run.steps):.0%} of their time for the slowest",
        loc="left",
        fontsize=11,
    )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _parts(steps: Sequence[Step]) -> dict[str, list[tuple[float, float]]]:
    """By colour, (begin, width) of what a rank did."""
    parts: dict[str, list[tuple[float, float]]] = {PROMPT: [], TOKENS: [], WAITS: []}
    for step in steps:
        own = step.end - step.start - step.waits_s
        if step.prefill or step.decodes:
            colour = PROMPT if step.prefill else TOKENS
            parts[colour].append((step.start - FROM_S, own))
        parts[WAITS].append((step.start - FROM_S + own, step.waits_s))
    return parts


def _bars(axes: Axes, runs: Sequence[Run], title: str, values: list[float]) -> None:
    axes.barh([run.policy for run in runs], values, color=["#999999", "#228855"])
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10, x=-0.22)
    axes.set_xlim(0, 1.35 * max(values))
    axes.xaxis.set_visible(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row, value in enumerate(values):
        change = f"  {value / values[0] - 1:+.0%}" if row else ""
        text = f" {value:.3g}" if value < 100 else f" {value:.0f}"
        axes.text(value, row, text + change, va="center", fontsize=11)
