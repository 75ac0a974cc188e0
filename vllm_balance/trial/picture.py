# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""trial.png: what the ranks did in the same seconds, and the figures beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .figures import JUDGED, STEADY
from .steps import Step, waiting_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROMPT, TOKENS, WAITS = "#ee7733", "#33659b", "#d8d8d8"
LEGEND = {
    PROMPT: "computes a prompt",
    TOKENS: "generates tokens only",
    WAITS: "waits for the slowest rank",
}
BASE, OTHER = "#999999", "#228855"
STEPS, MOST_RANKS = 100, 8
"""About how many steps are shown, from a third of the turn on."""
FIGURES = (
    ("output tokens per second", STEADY, 1.0),
    ("seconds a request takes: less is better", JUDGED, 1e-3),
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
        Where it is, or why it was not drawn.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ModuleNotFoundError:
        return (
            "trial.png is left out: matplotlib is not installed. After `pip install "
            "matplotlib` the same command draws it, and runs nothing again."
        )
    policies = document["policies"]
    shown = [policy for policy in policies if steps.get(policy)]
    right: Any = Figure(figsize=(13 if shown else 5, 6.4), layout="constrained")
    figure = right
    if shown:
        left, right = figure.subfigures(1, 2, width_ratios=(2.6, 1))
        bands = left.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        every = steps[shown[0]]
        last = max(step.end for step in every)
        mean = sum(step.end - step.start for step in every) / len(every)
        for axes, policy in zip(bands, shown, strict=True):
            _bands(axes, policy, steps[policy], last / 3, min(STEPS * mean, last / 2))
        bands[-1].set_xlabel("seconds")
        left.suptitle("What the ranks do in the same seconds", fontsize=13)
        handles = [Patch(color=colour, label=text) for colour, text in LEGEND.items()]
        left.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    rounds = len(next(iter(policies.values()))["runs"][STEADY])
    turns = f"{rounds} turns" if rounds > 1 else "one turn"
    right.suptitle(f"The same requests, {turns} each", fontsize=13)
    charts = right.subplots(len(FIGURES), 1)
    for axes, (title, name, scale) in zip(charts, FIGURES, strict=True):
        _bars(axes, policies, title, name, scale)
    figure.savefig(path, dpi=110)
    return f"Picture: {path}"


def _bands(
    axes: "Axes", policy: str, steps: Sequence[Step], begin: float, seconds: float
) -> None:
    ranks = sorted({step.rank for step in steps})[:MOST_RANKS]
    for row, rank in enumerate(ranks):
        parts: dict[str, list[tuple[float, float]]] = {name: [] for name in LEGEND}
        for step in steps:
            if step.rank == rank and begin < step.end and step.start < begin + seconds:
                waits_s = step.waits_s or 0.0
                own = step.end - step.start - waits_s
                colour = PROMPT if step.prefill else TOKENS
                parts[colour].append((step.start - begin, own))
                parts[WAITS].append((step.start - begin + own, waits_s))
        for colour, spans in parts.items():
            axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=colour, linewidth=0)
    axes.set(xlim=(0, seconds), ylim=(len(ranks) - 0.5, -0.5))
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    text = f"balance {policy}"
    share = waiting_share(steps)
    if share is None:
        text += ": how long the ranks wait for the slowest is unknown"
    else:
        text += f": in the whole turn the ranks wait {share:.0%} of their time "
        text += "for the slowest"
    axes.set_title(text, loc="left", fontsize=11)
    _bare(axes)


def _bars(
    axes: "Axes", policies: Mapping[str, Any], title: str, name: str, scale: float
) -> None:
    values = [scale * each["mean"][name] for each in policies.values()]
    axes.barh(list(policies), values, color=[BASE, *(OTHER for _ in values[1:])])
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10, x=-0.22)
    axes.set_xlim(0, 3.1 * max(values) or 1)
    axes.xaxis.set_visible(False)
    for row, (value, each) in enumerate(zip(values, policies.values(), strict=True)):
        ratio = each.get("ratios", {}).get(name)
        change = f"  {ratio['mean'] - 1:+.0%}" if ratio else ""
        if ratio and ratio["rounds"] > 1:
            low, high = (100 * (ratio[end] - 1) for end in ("low", "high"))
            change += f" ({low:+.0f} to {high:+.0f})"
        text = f" {value:.3g}" if value < 100 else f" {value:.0f}"
        axes.text(value, row, text + change, va="center", fontsize=11)
    _bare(axes)


def _bare(axes: "Axes") -> None:
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
