"""The demo's picture: what the two ranks did, with balance off and on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import matplotlib as mpl

from balance_tools.serving.demo_watch import Run

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

RUNNING, WAITING, HELD = "#1f77b4", "#bbbbbb", "#ff7f0e"


def plot(runs: list[Run], path: Path) -> Path:
    """One column a policy, one row a rank; returns the path of the PNG."""
    ranks = sorted(runs[0].samples[0].running)
    figure, grid = plt.subplots(
        len(ranks),
        len(runs),
        figsize=(12, 2.4 * len(ranks) + 1),
        sharex="col",
        sharey=True,
        squeeze=False,
    )
    for column, run in enumerate(runs):
        for row, rank in enumerate(ranks):
            _plot_rank(grid[row][column], run, rank)
        grid[0][column].set_title(f"--data-parallel-balance {run.policy}")
        grid[-1][column].set_xlabel("seconds")
    for row, rank in enumerate(ranks):
        grid[row][0].set_ylabel(f"rank {rank}\nrequests")
    handles, labels = grid[0][-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _plot_rank(axes: Axes, run: Run, rank: int) -> None:
    busy = run.busy_samples
    times = [sample.time_s - busy[0].time_s for sample in busy]
    running = [sample.running[rank] for sample in busy]
    waiting = [sample.waiting[rank] for sample in busy]
    held = [sample.held_steps.get(rank, 0) for sample in busy]
    axes.fill_between(times, waiting, step="post", color=WAITING, label="waiting")
    axes.step(times, running, where="post", color=RUNNING, lw=2, label="running")
    holding = [False, *(after > before for before, after in pairwise(held))]
    top = max(*running, *waiting, 1)
    axes.fill_between(
        times,
        top,
        where=holding,
        step="pre",
        color=HELD,
        alpha=0.35,
        lw=0,
        label="admissions held",
    )
    axes.set_ylim(0, top * 1.05)
