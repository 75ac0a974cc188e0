"""Draws the pictures of the pages, in docs/pictures.

::

    python bench/pictures.py [NAME ...]
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
sys.path.append(str(Path(__file__).resolve().parents[1]))
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

import tables
from vllm_balance.core.policies.adaptive import Adaptive, _slack
from vllm_balance.core.policies.rows import Limits, Row, Snapshot
from vllm_balance.simulator.loop import StepRecord
from vllm_balance.simulator.rank.limits import RankLimits
from vllm_balance.simulator.requests.arrivals import ClientTraffic, Frontend
from vllm_balance.simulator.scenario import Scenario, Workload, simulate
from vllm_balance.simulator.step_time.model import DEEPSEEK_V3_1

ROOT = Path(__file__).resolve().parents[1]

# ---- The rule


def rent(step: float = 0.06, full: float = 1.0) -> Figure:
    """Rent and waste in `adaptive` while prompts come to one rank after another.

    On four ranks with 32 requests each: a decode step takes 60 ms, a full step of
    prompts a second more, and each prompt is half of one.
    """
    policy = Adaptive()
    row = Row(*[0] * len(Row._fields))._replace(running=32, decoding=32)
    times, rents, wastes, arrivals = [], [], [], [0.5, 1.5, 2.5]
    for number in range(-600, 200):
        now, learning = number * step, number < 0 and number % 20 == 0
        ages = [now - at for at in arrivals if now > at] if number >= 0 else []
        seconds = step + full / 2 * learning
        rows = [row._replace(step_time_us=int(1e6 * seconds)) for _ in range(4)]
        rows[0] = rows[0]._replace(prefill_tokens=4096 * learning)
        for rank, age in enumerate(ages):
            waits = {"waiting": 1, "pending": 1, "pending_tokens": 4096}
            rows[rank] = rows[rank]._replace(**waits, pending_age_us=int(1e6 * age))
        snapshot = Snapshot.from_rows(rows, [Limits(64, 8192)] * 4)
        cost, decision = policy.learned and policy.learned.cost, policy.decide(snapshot)
        if cost is not None and ages and not decision.admit:
            requests = sum(snapshot.running) + sum(snapshot.waiting)
            load = requests / sum(snapshot.max_running)
            stretch = policy.state.known.flow.stretch
            weight = (1 + _slack(load, stretch)) / (requests * stretch)
            times.append(now)
            rents.append(sum(policy.state.waits.waiting) * weight)
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


# ---- What ranks do with each policy

RANKS, BEGIN, SECONDS = 4, 38.0, 10.0
"""The ranks, the first second that is shown, and how many are."""
SHOWN = Scenario(
    RankLimits(RANKS, 32, 8192),
    replace(DEEPSEEK_V3_1, phi=0.3),
    Workload(200, "lognormal:1000:0.5:4000", "uniform:100:400"),
    ClientTraffic(request_rate=3.0),
    Frontend(api_servers=RANKS),
    "as-served",
)
COLOURS = {
    "computes a prompt (and decodes)": "#ee7733",
    "decodes only": "#33659b",
    "decodes, holds a prompt back": "#66aadd",
    "has no request": "#999999",
    "waits for the slowest rank": "#dddddd",
}
PROMPT, DECODES, HOLDS, EMPTY, WAITS = COLOURS


def state(step: StepRecord, rank: int) -> str:
    if step.loads.prefill[rank]:
        return PROMPT
    if not step.loads.decodes[rank]:
        return EMPTY
    return HOLDS if step.held[rank] else DECODES


def bands(policy: str) -> str:
    steps: list[StepRecord] = []
    run = simulate(SHOWN, policy, on_step=steps.append)
    end = BEGIN + SECONDS
    shown = [step for step in steps if BEGIN <= step.end - step.seconds < end]
    boxes: dict[str, list[str]] = {name: [] for name in COLOURS}
    for step in shown:
        _, own, _ = SHOWN.cost.parts(step.loads)
        start = step.end - step.seconds - BEGIN
        for rank in range(RANKS):
            waits = max(own) - own[rank]
            busy = step.seconds - waits
            boxes[state(step, rank)].append(box(rank, start, busy - GAP))
            boxes[WAITS].append(box(rank, start + busy - GAP, waits))
    with_prompt = sum(any(step.loads.prefill) for step in shown)
    computed = sum(sum(step.loads.prefill) for step in shown)
    tokens = sum(step.tokens for step in run.steps if BEGIN <= step.end < end)
    title = f"{policy}: {computed:,} tokens of prompts computed in {with_prompt} of "
    title += f"{len(shown)} steps, {tokens:,} tokens generated"
    parts = [f'<text x="{LEFT}" y="14" font-weight="bold">{title}</text>']
    legend_x = LEFT
    for name, colour in COLOURS.items():
        parts.append(f'<path fill="{colour}" d="M{legend_x} 24h10v10h-10z"/>')
        parts.append(f'<text x="{legend_x + 14}" y="33">{name}</text>')
        parts.append(f'<path fill="{colour}" d="{"".join(boxes[name])}"/>')
        legend_x += 34 + 6 * len(name)
    for rank in range(RANKS):
        parts.append(f'<text x="0" y="{57 + rank * HEIGHT}">rank {rank}</text>')
    for second in range(int(SECONDS)):
        x = LEFT + second * PER_SECOND
        parts.append(f'<text x="{x}" y="{TOP + RANKS * HEIGHT + 14}">{second} s</text>')
    return SVG.format("".join(parts))


LEFT, TOP, HEIGHT, PER_SECOND = 60, 44, 22, 94
"""The layout in pixels."""
GAP = 0.001
"""Seconds that are left blank between two steps."""
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 150" role="img">'
    "<style>text{{font:12px sans-serif;fill:#222}}</style>"
    '<rect width="1000" height="150" fill="#ffffff"/>{}</svg>\n'
)


def box(rank: int, start: float, seconds: float) -> str:
    """A rank's box of some seconds, as part of a path; empty if it is too short."""
    last = min(start + seconds, SECONDS)
    width = PER_SECOND * (last - start)
    if width < 0.1:
        return ""
    left, top = LEFT + PER_SECOND * start, TOP + HEIGHT * rank
    return f"M{left:.1f} {top}h{width:.1f}v18h-{width:.1f}z"


# ---- What requests see over load

LINES = {"off": "#888888", "align": "#ee7733", "adaptive": "#33659b"}
LOADS = (0.3, 0.6, 0.9, None)
ROWS = {
    "latency, mean, s": "mean_e2el_ms",
    "first token, median, s": "median_ttft_ms",
    "first token, p99, s": "p99_ttft_ms",
}


def over_load(results: Path = ROOT / "bench" / "results") -> Figure:
    text = (results / "regimes.json").read_text(encoding="utf-8")
    cells = tables.select(json.loads(text)["cells"], regime=tables.USUAL)
    by_trace = tables.groups(cells, "of")
    figure, axes = plt.subplots(
        len(ROWS),
        len(by_trace),
        figsize=(8, 6),
        sharex=True,
        layout="constrained",
        squeeze=False,
    )
    for column, ((trace,), of_trace) in enumerate(by_trace.items()):
        axes[0][column].set_title(trace)
        for row, (title, name) in enumerate(ROWS.items()):
            lines(axes[row][column], of_trace, name)
            if column == 0:
                axes[row][0].set_ylabel(title)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False
    )
    return figure


def lines(axis: Axes, cells: Sequence[tables.Cell], name: str) -> None:
    by_load = tables.groups(cells, "load")
    for policy, colour in LINES.items():
        means = [
            statistics.fmean(tables.figure(c, policy, name) for c in by_load[(load,)])
            for load in LOADS
        ]
        values = [mean / 1e3 for mean in means]
        axis.plot(range(len(LOADS)), values, "o-", color=colour, label=policy, ms=3)
    axis.set_xticks(range(len(LOADS)), [tables.load_name(load) for load in LOADS])
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.grid(axis="y", color="#eeeeee", lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)


BANDS = "off", "cap", "align", "adaptive"
PLOTS: dict[str, Callable[[], Figure]] = {"rent": rent, "load": over_load}
"""By name of the file."""


def draw(name: str, folder: Path) -> None:
    path = folder / f"{name}.svg"
    if name in BANDS:
        path.write_text(bands(name), encoding="utf-8")
        return
    with mpl.rc_context({"font.size": 8, "svg.hashsalt": name}):
        figure = PLOTS[name]()
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    all_names = [*PLOTS, *BANDS]
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(all_names))
    names = parser.parse_args().names or all_names
    if unknown := sorted({*names} - {*all_names}):
        parser.error(f"{', '.join(unknown)}: no such picture")
    for name in names:
        draw(name, ROOT / "docs" / "pictures")


if __name__ == "__main__":
    main()
