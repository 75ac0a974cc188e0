# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""trial.png: what the ranks did in consecutive stretches, and the figures beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .figures import FIGURES, JUDGED, RATE, TPOT, TTFT
from .steps import Step, waiting_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROMPT, TOKENS, WAITS = "#ee7733", "#33659b", "#d8d8d8"
LEGEND = {
    PROMPT: "computes a prompt",
    TOKENS: "generates tokens only",
    WAITS: "waits for the slowest rank",
}
BASE, BETTER, WORSE, UNKNOWN = "#999999", "#228855", "#cc3311", "#c9c2a5"
STEPS, MOST_RANKS = 100, 8
"""About how many steps are shown of each policy."""
BARS = {
    JUDGED: "seconds a request takes (judged)",
    RATE: "output tokens per second: more is better",
    TPOT: "ms between tokens",
    TTFT: "seconds to first token, median",
}


def draw(
    document: Mapping[str, Any], steps: Mapping[str, Sequence[Step]], path: Path
) -> str:
    """Draws the ranks' bands on the left, where the log has them, and bars.

    Args:
        document: report.json.
        steps: of each policy in its stretches.
        path: the PNG.

    Returns:
        Where it is, or why it was not drawn.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ModuleNotFoundError:
        return "trial.png is left out: matplotlib is not installed."
    policies = document["policies"]
    shown = [policy for policy in policies if steps.get(policy)]
    right: Any = Figure(figsize=(13 if shown else 5, 6.4), layout="constrained")
    figure = right
    if shown:
        left, right = figure.subfigures(1, 2, width_ratios=(2.6, 1))
        bands = left.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        most = document["stretch_seconds"] - document["washout_seconds"]
        every = steps[shown[0]]
        usual = sum(step.end - step.start for step in every) / len(every)
        seconds = min(STEPS * usual, most)
        for axes, policy in zip(bands, shown, strict=True):
            _bands(axes, policy, steps[policy], seconds)
        bands[-1].set_xlabel("seconds")
        left.suptitle("The same load in consecutive stretches", fontsize=13)
        handles = [Patch(color=colour, label=text) for colour, text in LEGEND.items()]
        left.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    right.suptitle(f"One load, {document['blocks']} blocks", fontsize=13)
    charts = right.subplots(len(BARS), 1)
    for axes, (name, title) in zip(charts, BARS.items(), strict=True):
        _bars(axes, policies, title, name)
    figure.savefig(path, dpi=110)
    return f"Picture: {path}"


def _bands(axes: "Axes", policy: str, steps: Sequence[Step], seconds: float) -> None:
    ranks = sorted({step.rank for step in steps})[:MOST_RANKS]
    last = max(step.end for step in steps)
    begin = last - seconds
    for row, rank in enumerate(ranks):
        parts: dict[str, list[tuple[float, float]]] = {name: [] for name in LEGEND}
        for step in steps:
            if step.rank == rank and begin < step.end:
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
        text += f": in all its stretches the ranks wait {share:.0%} of their time "
        text += "for the slowest"
    axes.set_title(text, loc="left", fontsize=11)
    _bare(axes)


def colour_of(name: str, ratio: Mapping[str, float] | None) -> str:
    """Of a bar: whether the figure is better than the first policy's, or who knows."""
    if ratio is None or ratio["low"] <= 1 <= ratio["high"]:
        return UNKNOWN
    return BETTER if (ratio["mean"] < 1) != (name == RATE) else WORSE


def _bars(axes: "Axes", policies: Mapping[str, Any], title: str, name: str) -> None:
    _, scale, _ = FIGURES[name]
    values = [scale * each["mean"][name] for each in policies.values()]
    ratios = [each.get("ratios", {}).get(name) for each in policies.values()]
    colours = [BASE, *(colour_of(name, ratio) for ratio in ratios[1:])]
    axes.barh(list(policies), values, color=colours)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10, x=-0.22)
    most = max(values) or 1
    axes.set_xlim(0, 3.1 * most)
    axes.xaxis.set_visible(False)
    for row, (value, ratio) in enumerate(zip(values, ratios, strict=True)):
        text, at = f" {value:.3g}" if value < 100 else f" {value:.0f}", value
        if ratio:
            low, high = (values[0] * ratio[end] for end in ("low", "high"))
            middle = values[0] * ratio["mean"]
            axes.errorbar(
                middle, row, xerr=[[middle - low], [high - middle]], color="k"
            )
            at = max(value, min(high, 2 * most))
            low, high = (100 * (ratio[end] - 1) for end in ("low", "high"))
            text += f"  {ratio['mean'] - 1:+.0%} ({low:+.0f} to {high:+.0f})"
        axes.text(at, row, text, va="center", fontsize=11)
    _bare(axes)


def _bare(axes: "Axes") -> None:
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
