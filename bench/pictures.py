"""Draws the picture of docs/results.md from bench/results, and that of the rule (SVG).

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
import simulated  # noqa: F401  before vllm

# isort: split
import tables
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from vllm.v1.core.sched.balance.policies.adaptive import Adaptive, AdaptiveParameters
from vllm.v1.core.sched.balance.policies.rows import Row, Snapshot

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


def rent(step: float = 0.06, full: float = 1.0) -> Figure:
    """What `adaptive` weighs while prompts come to one rank after another.

    On four ranks with 32 requests each: a decode step takes 60 ms, a full step of
    prompts a second more, and each prompt is half of one.
    """
    policy = Adaptive(AdaptiveParameters())
    row = Row(*[0] * len(Row._fields))._replace(
        running=32, decoding=32, max_running=64, max_tokens=8192
    )
    times, rents, wastes, came = [], [], [], [0.5, 1.5, 2.5]
    for number in range(-600, 80):
        now, learning = number * step, number < 0 and number % 20 == 0
        ages = [now - at for at in came if now > at] if number >= 0 else []
        seconds = step + full / 2 * learning
        rows = [row._replace(step_time_us=int(1e6 * seconds)) for _ in range(4)]
        rows[0] = rows[0]._replace(prefill_tokens=4096 * learning)
        for rank, age in enumerate(ages):
            waits = {"waiting": 1, "pending": 1, "pending_tokens": 4096}
            rows[rank] = rows[rank]._replace(**waits, pending_age_us=int(1e6 * age))
        snapshot = Snapshot.from_rows(rows)
        cost, decision = policy.learned and policy.learned.cost, policy.decide(snapshot)
        if cost is not None and ages and not decision.admit:
            requests = sum(snapshot.running) + sum(snapshot.waiting)
            load = requests / sum(snapshot.max_running)
            weight = (1 + policy._slack(load)) / (requests * policy._decodes.stretch)
            times.append(now)
            rents.append(sum(policy._waiting) * weight)
            wastes.append(cost.waste(0.5, len(ages) / 8, 1 - len(ages) / 4))
        elif ages:
            break
    figure, axis = plt.subplots(figsize=(5, 3))
    axis.plot(times, rents, color="#c0392b", label="rent of those that wait")
    axis.plot(times, wastes, color="#2471a3", label="waste of a release")
    axis.axvline(now, color="#17202a", lw=0.8)
    axis.annotate("release", (now, 0), (-32, 4), textcoords="offset points")
    axis.set(xlabel="seconds", ylabel="seconds of all ranks", ylim=0)
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def result(name: str) -> tables.Document:
    """One of bench/results."""
    source = ROOT / "bench" / "results" / f"{name}.json"
    return json.loads(source.read_text(encoding="utf-8"))


def main() -> None:
    """Draws them."""
    mpl.rcParams.update({"font.size": 8})
    for name, draw in (
        ("rent", rent),
        ("tradeoff", lambda: trade_off(result("traces"))),
    ):
        mpl.rcParams["svg.hashsalt"] = name
        figure = draw()
        drawn = ROOT / "docs" / "pictures" / f"{name}.svg"
        drawn.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(drawn, bbox_inches="tight", metadata={"Date": None})
        print(drawn)


if __name__ == "__main__":
    main()
