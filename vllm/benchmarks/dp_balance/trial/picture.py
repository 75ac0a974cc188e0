# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""trial.png: what the ranks did in the same seconds, and the figures beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .figures import STEADY
from .steps import Step, waiting_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROMPT, TOKENS, WAITS = "#ee7733", "#33659b", "#d8d8d8"
BASE, OTHER = "#999999", "#228855"
STEPS = 100
"""About so many are shown, from a third of the turn on."""
MOST_RANKS = 8
FIGURES = (
    ("output tokens per second", STEADY, 1.0),
    ("seconds a request takes: less is better", "mean_e2el_ms", 1e-3),
    ("ms between tokens: less is better", "mean_tpot_ms", 1.0),
    ("seconds to first token, median: the price", "median_ttft_ms", 1e-3),
)


def draw(
    document: Mapping[str, Any], steps: Mapping[str, Sequence[Step]], path: Path
) -> str:
    """Draws the ranks' bands on the left, where the log has them, and bars.

    Args:
        document: report.json.
        steps: of each policy in one of its turns.
        path: the PNG.

    Returns:
        Why it was not drawn; empty if it was.
    """
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        return (
            "trial.png is left out: matplotlib is not installed. After `pip install "
            "matplotlib` the same command draws it, and runs nothing again."
        )
    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    policies = list(document["policies"])
    shown = [policy for policy in policies if steps.get(policy)]
    figure = plt.figure(figsize=(13 if shown else 5, 6.4), layout="constrained")
    right: Any = figure
    if shown:
        halves = figure.add_gridspec(1, 2, width_ratios=(2.6, 1))
        left = figure.add_subfigure(halves[0])
        right = figure.add_subfigure(halves[1])
        bands = left.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        seconds = _seconds(steps[shown[0]])
        for axes, policy in zip(bands, shown, strict=True):
            _bands(axes, policy, steps[policy], seconds)
        bands[-1].set_xlabel("seconds")
        left.suptitle("What the ranks do in the same seconds", fontsize=13)
        handles = [
            Patch(color=PROMPT, label="computes a prompt"),
            Patch(color=TOKENS, label="generates tokens only"),
            Patch(color=WAITS, label="waits for the slowest rank"),
        ]
        left.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    charts = right.subplots(len(FIGURES), 1)
    rounds = len(document["policies"][policies[0]]["runs"])
    turns = f"{rounds} turns" if rounds > 1 else "one turn"
    right.suptitle(f"The same requests, {turns} each", fontsize=13)
    for axes, (title, name, scale) in zip(charts, FIGURES, strict=True):
        _bars(axes, document["policies"], title, name, scale)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return ""


def _seconds(steps: Sequence[Step]) -> tuple[float, float]:
    """From when, and for how long."""
    last = max(step.end for step in steps)
    mean = sum(step.end - step.start for step in steps) / len(steps)
    return last / 3, min(STEPS * mean, last / 2)


def _bands(
    axes: "Axes", policy: str, steps: Sequence[Step], seconds: tuple[float, float]
) -> None:
    begin, length = seconds
    ranks = sorted({step.rank for step in steps})[:MOST_RANKS]
    for row, rank in enumerate(ranks):
        parts: dict[str, list[tuple[float, float]]] = {
            PROMPT: [],
            TOKENS: [],
            WAITS: [],
        }
        for step in steps:
            if step.rank != rank or not begin - 1 < step.end < begin + length + 1:
                continue
            own = step.end - step.start - step.waits_s
            if step.prefill or step.decodes:
                colour = PROMPT if step.prefill else TOKENS
                parts[colour].append((step.start - begin, own))
            parts[WAITS].append((step.start - begin + own, step.waits_s))
        for colour, spans in parts.items():
            axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=colour, linewidth=0)
    axes.set_xlim(0, length)
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.set_title(
        f"balance {policy}: in the whole turn the ranks wait "
        f"{waiting_share(steps):.0%} of their time for the slowest",
        loc="left",
        fontsize=11,
    )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _bars(
    axes: "Axes", policies: Mapping[str, Any], title: str, name: str, scale: float
) -> None:
    values = [scale * each["mean"][name] for each in policies.values()]
    colours = [BASE, *(OTHER for _ in values[1:])]
    axes.barh(list(policies), values, color=colours)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10, x=-0.22)
    axes.set_xlim(0, 1.35 * max(values))
    axes.xaxis.set_visible(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row, (value, each) in enumerate(zip(values, policies.values(), strict=True)):
        ratio = each.get("ratios", {}).get(name)
        change = f"  {ratio['mean'] - 1:+.0%}" if ratio else ""
        text = f" {value:.3g}" if value < 100 else f" {value:.0f}"
        axes.text(value, row, text + change, va="center", fontsize=11)
