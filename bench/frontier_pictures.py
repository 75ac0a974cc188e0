"""Draws the pictures of docs/frontier.md from bench/results/frontier.json (SVG)."""

import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from frontier_data import (
    CellResult,
    Document,
    baselines,
    gain,
    geometric_mean,
    lead,
    ratio,
)
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

COLOURS = {
    "adaptive": "#c0392b",
    "align": "#2471a3",
    "sglang": "#7d3c98",
    "cap": "#b7950b",
    "interval": "#7f8c8d",
    "trtllm": "#1e8449",
    "off": "#17202a",
}
LIMIT = 8.0
"""Per cent at which the colours of the heat map end."""


def _colour(policy: str) -> str:
    return next(c for name, c in COLOURS.items() if policy.startswith(name))


def draw_trade(document: Document, path: Path) -> None:
    """Throughput against tails, both relative to `align`.

    There is a dot per closed loop, and the geometric mean of each policy.
    """
    cells = [cell for cell in document["cells"] if cell["closed_loop"]]
    panels = (("p99_ttft_ms", "TTFT p99"), ("p99_itl_ms", "ITL p99"))
    figure, axes = plt.subplots(1, 2, figsize=(10, 5), sharey=True)
    for axis, (name, title) in zip(axes, panels, strict=True):
        for policy in ("off", *baselines(document), "adaptive"):
            x = [ratio(cell, policy, name) for cell in cells]
            y = [_throughput(cell, policy) for cell in cells]
            colour = _colour(policy)
            axis.scatter(x, y, s=7, color=colour, alpha=0.3, linewidths=0)
            axis.scatter(
                geometric_mean(x),
                geometric_mean(y),
                s=130,
                color=colour,
                edgecolors="white",
                label=policy,
                zorder=3,
            )
        axis.axhline(1, color="0.7", lw=0.8, zorder=0)
        axis.axvline(1, color="0.7", lw=0.8, zorder=0)
        axis.set(xscale="log", yscale="log", xlim=(0.2, 5), ylim=(0.4, 1.25))
        axis.set_xticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1", "2", "4"])
        axis.set_yticks(
            [0.5, 0.7, 0.9, 1, 1.1, 1.2], ["0.5", "0.7", "0.9", "1", "1.1", "1.2"]
        )
        axis.minorticks_off()
        axis.set_xlabel(f"{title}, × align (better to the left)")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("steady throughput, × align (better above)")
    axes[0].legend(loc="lower left", fontsize=8, frameon=False)
    _save(figure, path)


def _throughput(cell: CellResult, policy: str) -> float:
    return (1 + gain(cell, policy)) / (1 + gain(cell, "align"))


def draw_lead(document: Document, path: Path) -> None:
    """`adaptive` over the best baseline, in per cent, cell by cell."""
    cells: dict[tuple[str, int, float], CellResult] = {
        (cell["workload"], cell["ranks"], cell["phi"]): cell
        for cell in document["cells"]
    }
    workloads, all_ranks, phis = (
        list(dict.fromkeys(cell[name] for cell in document["cells"]))
        for name in ("workload", "ranks", "phi")
    )
    columns = [(ranks, phi) for ranks in all_ranks for phi in phis]
    values = [
        [100 * lead(document, cells[workload, ranks, phi]) for ranks, phi in columns]
        for workload in workloads
    ]
    figure, axis = plt.subplots(figsize=(11, 6))
    axis.imshow(values, cmap="RdBu", vmin=-LIMIT, vmax=LIMIT, aspect="auto")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            axis.text(
                column,
                row,
                f"{value:+.1f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if abs(value) > 0.7 * LIMIT else "black",
            )
    axis.set_yticks(range(len(workloads)), workloads, fontsize=8)
    axis.set_xticks(range(len(columns)), [f"{phi:g}" for _, phi in columns], fontsize=8)
    axis.set_xlabel("phi")
    axis.tick_params(length=0)
    for number, ranks in enumerate(all_ranks):
        left = number * len(phis)
        axis.text(left + 1.5, -0.8, f"{ranks} ranks", ha="center", fontsize=9)
        if number:
            axis.axvline(left - 0.5, color="white", lw=3)
    axis.spines[:].set_visible(False)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def draw(document: Document, folder: Path) -> Sequence[Path]:
    """Draws all; equal documents give equal files.

    Args:
        document: of `frontier.py`.
        folder: where the pictures go.
    """
    mpl.rcParams["svg.hashsalt"] = "frontier"
    mpl.rcParams["font.size"] = 9
    trade, heat = folder / "frontier-trade.svg", folder / "frontier-lead.svg"
    draw_trade(document, trade)
    draw_lead(document, heat)
    return trade, heat


if __name__ == "__main__":
    ROOT = Path(__file__).parents[1]
    RESULT = ROOT / "bench" / "results" / "frontier.json"
    draw(
        json.loads(RESULT.read_text(encoding="utf-8")),
        ROOT / "docs" / "pictures",
    )
