"""Runs `adaptive` and its baselines on windows of real traces.

::

    python bench/trace_grid.py [--jobs 1] [--minutes 7]

A window is sent at shares of what `off` could serve of it, and at 120 % of what
`adaptive` could. Requests are dispatched as servers with that policy do it, and once
more by vLLM's own load balancer with `adaptive`. Runs that have ended are kept in
build/traces; a change of the simulator or of a policy makes its own anew. The time
over, it writes the cells that every policy has been run in, if the result that is there
has no more of them, and can be started again to go on.
"""

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from kept_runs import Figures, KeptRuns, sources_hash
from vllm.benchmarks.dp_balance.front_end.load_balancers import AS_SERVED
from vllm.benchmarks.dp_balance.loop import Run
from vllm.benchmarks.dp_balance.metrics import percentile
from vllm.benchmarks.dp_balance.rank.engine import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.requests.traces import TimedTrace, read_trace
from vllm.benchmarks.dp_balance.results import versions
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload, simulate
from vllm.benchmarks.dp_balance.step_time.model import DEEPSEEK_V3_1, CostModel

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "traces" / "runs.jsonl"
RESULT = ROOT / "bench" / "results" / "traces.json"
TTFT_SLO, TPOT_SLO = 2.0, 0.1
"""Seconds; goodput is the share of the requests that keep both."""
COUNTED = "adaptive, vLLM's dispatch"
"""`adaptive` as the dispatch by prompt tokens leaves it: shows the share of that."""
POLICIES = (
    "adaptive",
    COUNTED,
    "off",
    "cap",
    "align",
    "sglang-30",
    "sglang-100",
    "sglang23-30",
    "interval-64",
    "trtllm",
)
COSTS: dict[str, CostModel] = {
    "phi 0": replace(DEEPSEEK_V3_1, phi=0.0),
    "phi 0.5": replace(DEEPSEEK_V3_1, phi=0.5),
    "phi 0.5, padded": replace(DEEPSEEK_V3_1, phi=0.5, padded=1),
    "phi 0.3": replace(DEEPSEEK_V3_1, phi=0.3),
}
LOADS = (0.3, 0.6, 0.9, 1.3, None)
"""Shares of what off serves; None for 120 % of what adaptive serves."""
SHAPE = (8, 32)
"""Ranks and their slots."""
SPOT_SHAPES = ((4, 32), (16, 16), (32, 16))
SPOT_COSTS = ("phi 0", "phi 0.5")
SPOT_LOADS = (0.3, 0.9)
STEP = 8192
"""Tokens of the largest step."""


class Window(NamedTuple):
    """Consecutive requests of a trace."""

    trace: str
    file: str
    first: int
    count: int


WINDOWS = (
    Window("Azure code", "azure_2023_code.csv", 1500, 1500),
    Window("Azure conv", "azure_2023_conv.csv", 3000, 1500),
    Window("Mooncake", "mooncake_conversation.jsonl", 700, 600),
    Window("Azure code", "azure_2023_code.csv", 4500, 1500),
    Window("Azure conv", "azure_2023_conv.csv", 9000, 1500),
    Window("Mooncake", "mooncake_conversation.jsonl", 2200, 600),
    Window("Azure code", "azure_2023_code.csv", 6000, 1500),
    Window("Azure conv", "azure_2023_conv.csv", 1500, 1500),
    Window("Mooncake", "mooncake_conversation.jsonl", 3600, 600),
)
"""None of them was looked at when the policy was made; see the page of the results. The
last of each trace is the first of its slice that nothing had been run on."""
SPOT_WINDOWS = WINDOWS[-3:]


@dataclass(frozen=True)
class Task:
    """One run; without a rate, with all slots in use."""

    window: Window
    cost: str
    policy: str
    rate: float | None = None
    """Requests per second."""
    shape: tuple[int, int] = SHAPE
    """Ranks and slots."""

    @property
    def key(self) -> str:
        """Names the run, with a hash of all that it depends on."""
        of = f"{[*self.window]} {self.shape} {self.cost} {self.policy} {self.rate}"
        return f"{of} {sources_hash(self.policy)[:12]}"

    def scenario(self) -> Scenario:
        """What is simulated."""
        window = self.window
        path = ROOT / "bench" / "traces" / window.file
        rows = read_trace(path).rows
        times = [row.time or 0.0 for row in rows]
        own_rate = (window.count - 1) / (
            times[window.first + window.count - 1] - times[window.first]
        )
        ranks, slots = self.shape
        # All slots in use, and requests left to send while they are.
        in_flight = min(2 * ranks * slots, window.count // 2)
        traffic = ClientTraffic(max_concurrency=in_flight)
        if self.rate is not None:
            traffic = ClientTraffic(
                self_timed=True, rate_multiplier=self.rate / own_rate
            )
        start = TimedTrace(start=times[window.first])
        return Scenario(
            RankLimits(ranks, slots, STEP),
            COSTS[self.cost],
            Workload(window.count, trace=path, timed_trace=start),
            traffic,
            load_balancer="0.23" if self.policy == COUNTED else AS_SERVED,
        )


def execute(task: Task) -> tuple[str, Figures]:
    """The figures of one run, with its key."""
    policy = "adaptive" if task.policy == COUNTED else task.policy
    run = simulate(task.scenario(), policy)
    found = capacity(run) if task.rate is None else figures(run)
    return task.key, {name: round(value, 4) for name, value in found.items()}


def capacity(run: Run) -> Figures:
    """Requests per second, without the first tenth and the final drain."""
    done = sorted(request.done for request in run.requests)
    start = done[len(done) // 10]
    served = sum(start < time <= run.last_sent for time in done)
    return {"rate": served / (run.last_sent - start)}


def figures(run: Run) -> Figures:
    """What users feel: seconds, but for TPOT (ms) and goodput (a share)."""
    ttfts = sorted(request.first_token - request.sent for request in run.requests)
    e2els = [request.done - request.sent for request in run.requests]
    tpots = [
        (request.done - request.first_token) / max(1, request.output_len - 1)
        for request in run.requests
    ]
    kept = [
        request.first_token - request.sent <= TTFT_SLO and tpot <= TPOT_SLO
        for request, tpot in zip(run.requests, tpots, strict=True)
    ]
    return {
        "mean_e2el": statistics.fmean(e2els),
        "median_ttft": percentile(ttfts, 0.5),
        "p99_ttft": percentile(ttfts, 0.99),
        "mean_tpot_ms": 1e3 * statistics.fmean(tpots),
        "goodput": statistics.fmean(kept),
    }


Runs = KeptRuns[Task]


class Part(NamedTuple):
    """What is made in one go: a form of the cost, and a shape."""

    cost: str
    shape: tuple[int, int]
    windows: Sequence[Window]
    loads: Sequence[float | None]

    def capacities(self) -> list[Task]:
        """The runs that tell the rates."""
        return [
            Task(window, self.cost, policy, shape=self.shape)
            for window in self.windows
            for policy in ("off", "adaptive")
        ]


PARTS = (
    *(Part(cost, SHAPE, WINDOWS, LOADS) for cost in COSTS),
    *(
        Part(cost, shape, SPOT_WINDOWS, SPOT_LOADS)
        for shape in SPOT_SHAPES
        for cost in SPOT_COSTS
    ),
)


class Cell(NamedTuple):
    """One place of the grid."""

    part: Part
    window: Window
    load: float | None
    rate: float

    def tasks(self) -> dict[str, Task]:
        """Its runs, by policy."""
        part = self.part
        return {
            policy: Task(self.window, part.cost, policy, self.rate, part.shape)
            for policy in POLICIES
        }


def grid(runs: Runs, part: Part) -> Iterator[Cell]:
    """The cells whose rate is known, those of one window together."""
    capacities = iter(part.capacities())
    for window, *tasks in zip(part.windows, capacities, capacities, strict=True):
        if all(task in runs for task in tasks):
            off, adaptive = (runs[task]["rate"] for task in tasks)
            for load in part.loads:
                rate = 1.2 * adaptive if load is None else load * off
                yield Cell(part, window, load, round(rate, 4))


def summary(runs: Runs) -> list[dict[str, object]]:
    """All figures of the cells in which every policy has been run."""
    return [
        {
            "trace": cell.window.trace,
            "first": cell.window.first,
            "count": cell.window.count,
            "ranks": part.shape[0],
            "slots": part.shape[1],
            "cost": part.cost,
            "load": cell.load,
            "rate": cell.rate,
            "policies": {name: runs[task] for name, task in cell.tasks().items()},
        }
        for part in PARTS
        for cell in grid(runs, part)
        if all(task in runs for task in cell.tasks().values())
    ]


def make_all(runs: Runs) -> None:
    """Makes what is missing, part after part, until the time is over.

    What there is then has all traces and loads.
    """
    for part in PARTS:
        title = f"{part.cost}, {part.shape[0]} x {part.shape[1]}"
        if not runs.make(f"{title}: capacity", part.capacities()):
            return
        tasks = [task for cell in grid(runs, part) for task in cell.tasks().values()]
        if not runs.make(title, tasks):
            return


def write(cells: Sequence[dict[str, object]]) -> None:
    """Writes the result, unless the one that is there has more cells."""
    total = sum(len(part.windows) * len(part.loads) for part in PARTS)
    if RESULT.exists():
        there = len(json.loads(RESULT.read_text(encoding="utf-8"))["cells"])
        if there > len(cells):
            sys.exit(
                f"{RESULT} has {there} cells, these runs {len(cells)} of {total}; it "
                "stays as it is. Run this again to go on."
            )
    document = {
        "command": "python bench/trace_grid.py",
        "versions": versions(),
        "interpreter": platform.python_implementation(),
        "slo": {"ttft_s": TTFT_SLO, "tpot_s": TPOT_SLO},
        "cells_of_grid": total,
    }
    head = json.dumps(document, indent=1, ensure_ascii=False)[:-2]
    lines = ",\n  ".join(json.dumps(cell) for cell in cells)
    RESULT.write_text(f'{head},\n "cells": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
    print(f"Wrote {RESULT}: {len(cells)} of {total} cells")


def main() -> None:
    """Makes what is missing, and writes what is complete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop after so many"
    )
    arguments = parser.parse_args()
    runs = Runs(KEPT, execute, arguments.jobs, arguments.minutes)
    make_all(runs)
    cells = summary(runs)
    if not cells:
        sys.exit(f"No cell is complete; run it again to go on. Runs are in {KEPT}.")
    write(cells)


if __name__ == "__main__":
    main()
