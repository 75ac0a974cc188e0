# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""trial.png: tokens per second over consecutive stretches, and bars of the figures."""

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .figures import FIGURES, JUDGED, RATE, TICK, TPOT, TTFT, Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = "#888888", "#33659b", "#ee7733", "#aa66aa"
"""The policies' colours in the chart over time."""
BASE, BETTER, WORSE, UNKNOWN = "#999999", "#228855", "#cc3311", "#c9c2a5"
STRETCHES, POINTS = 8, 5
"""The last stretches that are shown; a point is the mean of a fifth of a stretch."""
BARS = {
    JUDGED: "seconds a request takes (judged)",
    RATE: "output tokens per second: more is better",
    TPOT: "ms between tokens",
    TTFT: "seconds to first token, median",
}


def draw(document: Mapping[str, Any], measured: Measured, path: Path) -> str:
    """Draws tokens per second on the left, and bars with intervals on the right.

    Args:
        document: report.json.
        measured: the stretches.
        path: the PNG.

    Returns:
        A line with the path, or with the reason why nothing was drawn.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return "trial.png is left out: matplotlib is not installed."
    policies = document["policies"]
    figure: Any = Figure(figsize=(13, 6.4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(2, 1))
    left.suptitle("One load in consecutive stretches", fontsize=13)
    _over_time(left.subplots(1, 1), list(policies), measured)
    right.suptitle(f"{document['blocks']} blocks", fontsize=13)
    charts = right.subplots(len(BARS), 1)
    for axes, (name, title) in zip(charts, BARS.items(), strict=True):
        _bars(axes, policies, title, name)
    figure.savefig(path, dpi=110)
    return f"Picture: {path}"


def _over_time(axes: "Axes", policies: list[str], measured: Measured) -> None:
    """Draws tokens per second; the judged part of a stretch is shaded, with a mean."""
    colours = dict(zip(policies, cycle(COLOURS), strict=False))
    shown = measured.stretches[-STRETCHES:]
    start = shown[0].begin
    for stretch in shown:
        first, last = (int(at / TICK) for at in (stretch.begin, stretch.end))
        judged, colour = stretch.begin + measured.washout, colours[stretch.policy]
        axes.axvspan(judged - start, stretch.end - start, color=colour, alpha=0.15)
        width = max(1, (last - first) // POINTS)
        begins = range(first, last - width + 1)
        rates = [_rate(measured, at, at + width) for at in begins]
        times = [(at + width / 2) * TICK - start for at in begins]
        axes.plot(times, rates, color=colour)
        mean = _rate(measured, int(judged / TICK), last)
        axes.hlines(
            mean, judged - start, stretch.end - start, colors=colour, linewidth=4
        )
        axes.text(
            stretch.begin - start,
            1.0,
            stretch.policy,
            color=colour,
            transform=axes.get_xaxis_transform(),
        )
    axes.set(xlabel="seconds", ylabel="output tokens per second", ylim=0)
    axes.spines[["top", "right"]].set_visible(False)


def _rate(measured: Measured, first: int, last: int) -> float:
    """Tokens per second over the ticks from `first` until before `last`."""
    tokens = sum(measured.ticks.get(tick, 0.0) for tick in range(first, last))
    return tokens / (max(1, last - first) * TICK)


def colour_of(name: str, ratio: Mapping[str, float] | None) -> str:
    """A bar's colour: better or worse than the first policy, or undecided."""
    if ratio is None or ratio["low"] <= 1 <= ratio["high"]:
        return UNKNOWN
    return BETTER if (ratio["mean"] < 1) != (name == RATE) else WORSE


def _bars(axes: "Axes", policies: Mapping[str, Any], title: str, name: str) -> None:
    _, scale, _ = FIGURES[name]
    values = [scale * figures["mean"][name] for figures in policies.values()]
    ratios = [figures.get("ratios", {}).get(name) for figures in policies.values()]
    colours = [BASE, *(colour_of(name, ratio) for ratio in ratios[1:])]
    axes.barh(list(policies), values, color=colours)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10, x=-0.22)
    max_value = max(values) or 1
    axes.set_xlim(0, 3.1 * max_value)
    axes.xaxis.set_visible(False)
    for row, (value, ratio) in enumerate(zip(values, ratios, strict=True)):
        text, at = f" {value:.3g}" if value < 100 else f" {value:.0f}", value
        if ratio:
            low, high = (values[0] * ratio[end] for end in ("low", "high"))
            middle = values[0] * ratio["mean"]
            axes.errorbar(
                middle, row, xerr=[[middle - low], [high - middle]], color="k"
            )
            at = max(value, min(high, 2 * max_value))
            low, high = (100 * (ratio[end] - 1) for end in ("low", "high"))
            text += f"  {ratio['mean'] - 1:+.0%} ({low:+.0f} to {high:+.0f})"
        axes.text(at, row, text, va="center", fontsize=11)
    _bare(axes)


def _bare(axes: "Axes") -> None:
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
