"""Runs `adaptive` and its baselines on windows of real traces.

::

    python bench/trace_grid.py [--jobs 1] [--minutes 7]

A window is sent at shares of what `off` could serve of it, and at 120 % of what
`adaptive` could. Runs that have ended are kept in build/traces; a change of the
simulator or of a policy makes all of them anew. The time over, it writes the cells that
every policy has been run in, and can be started again to go on.
"""

import argparse
import hashlib
import json
import platform
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from kept_runs import Figures, KeptRuns
from vllm.benchmarks.dp_balance.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.cost import DEEPSEEK_V3_1, CostModel
from vllm.benchmarks.dp_balance.engine import RankLimits
from vllm.benchmarks.dp_balance.loop import Run
from vllm.benchmarks.dp_balance.metrics import percentile
from vllm.benchmarks.dp_balance.results import versions
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload, simulate
from vllm.benchmarks.dp_balance.traces import TimedTrace, read_trace

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "traces" / "runs.jsonl"
RESULT = ROOT / "bench" / "results" / "traces.json"
TTFT_SLO, TPOT_SLO = 2.0, 0.1
"""Seconds; goodput is the share of the requests that keep both."""
POLICIES = (
    "adaptive",
    "off",
    "cap",
    "align",
    "sglang-30",
    "sglang-100",
    "sglang23-30",
    "interval-64",
)
COSTS: dict[str, CostModel] = {
    "phi 0": replace(DEEPSEEK_V3_1, phi=0.0),
    "phi 0.5": replace(DEEPSEEK_V3_1, phi=0.5),
    "phi 0.5, padded": replace(DEEPSEEK_V3_1, phi=0.5, padded=1),
    "phi 0.3": replace(DEEPSEEK_V3_1, phi=0.3),
}
LOADS = (0.3, 0.6, 0.9, 1.3, None)
"""Shares of what off serves; None for 120 % of what adaptive serves."""
LIMITS = RankLimits(ranks=8, max_num_seqs=32, max_num_batched_tokens=8192)
SATURATED = 2 * LIMITS.ranks * LIMITS.max_num_seqs
"""Requests in flight that find every slot in use."""


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
)
"""None of them was looked at when the policy was made; see the page of the results."""


@dataclass(frozen=True)
class Task:
    """One run; without a rate, with all slots in use."""

    window: Window
    cost: str
    policy: str
    rate: float | None = None
    """Requests per second."""

    @property
    def key(self) -> str:
        """Names the run, with a hash of the simulator and the policies."""
        *window, rate = *self.window, self.rate
        return f"{window} {self.cost} {self.policy} {rate} {_source()}"

    def scenario(self) -> Scenario:
        """What is simulated."""
        window = self.window
        path = ROOT / "bench" / "traces" / window.file
        rows = read_trace(path).rows
        times = [row.time or 0.0 for row in rows]
        own_rate = (window.count - 1) / (
            times[window.first + window.count - 1] - times[window.first]
        )
        traffic = ClientTraffic(max_concurrency=SATURATED)
        if self.rate is not None:
            traffic = ClientTraffic(
                self_timed=True, rate_multiplier=self.rate / own_rate
            )
        start = TimedTrace(start=times[window.first])
        return Scenario(
            LIMITS,
            COSTS[self.cost],
            Workload(window.count, trace=path, timed_trace=start),
            traffic,
        )


@lru_cache
def _source() -> str:
    """Hash of all modules that a simulation imports."""
    packages = ("vllm.benchmarks.dp_balance", "vllm.v1.core.sched.balance")
    paths = sorted(
        Path(module.__file__)
        for name, module in sys.modules.items()
        if name.startswith(packages) and module.__file__
    )
    return hashlib.sha256(b"".join(map(Path.read_bytes, paths))).hexdigest()[:12]


def execute(task: Task) -> tuple[str, Figures]:
    """The figures of one run, with its key."""
    run = simulate(task.scenario(), task.policy)
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


class Cell(NamedTuple):
    """One place of the grid."""

    window: Window
    cost: str
    load: float | None
    rate: float


def grid(runs: Runs) -> Iterator[Cell]:
    """The cells whose rate is known, those of one window together."""
    for cost in COSTS:
        for window in WINDOWS:
            tasks = [Task(window, cost, policy) for policy in ("off", "adaptive")]
            if all(task in runs for task in tasks):
                off, adaptive = (runs[task]["rate"] for task in tasks)
                for load in LOADS:
                    rate = 1.2 * adaptive if load is None else load * off
                    yield Cell(window, cost, load, round(rate, 4))


def summary(runs: Runs) -> list[dict[str, object]]:
    """All figures of the cells in which every policy has been run."""
    cells = []
    for cell in grid(runs):
        tasks = {
            policy: Task(cell.window, cell.cost, policy, cell.rate)
            for policy in POLICIES
        }
        if all(task in runs for task in tasks.values()):
            cells.append(
                {
                    "trace": cell.window.trace,
                    "first": cell.window.first,
                    "count": cell.window.count,
                    "cost": cell.cost,
                    "load": cell.load,
                    "rate": cell.rate,
                    "policies": {name: runs[task] for name, task in tasks.items()},
                }
            )
    return cells


def main() -> None:
    """Makes what is missing, and writes what is complete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop after so many"
    )
    arguments = parser.parse_args()
    runs = Runs(KEPT, execute, arguments.jobs, arguments.minutes)
    # One cost model after the other, so that what there is when the time is over has
    # all traces and loads.
    for cost in COSTS:
        saturated = [
            Task(window, cost, policy)
            for window in WINDOWS
            for policy in ("off", "adaptive")
        ]
        if not runs.make(f"{cost}: capacity", saturated):
            break
        tasks = [
            Task(cell.window, cost, policy, cell.rate)
            for cell in grid(runs)
            if cell.cost == cost
            for policy in POLICIES
        ]
        if not runs.make(cost, tasks):
            break
    cells = summary(runs)
    if not cells:
        sys.exit(f"No cell is complete; run it again to go on. Runs are in {KEPT}.")
    total = len(COSTS) * len(WINDOWS) * len(LOADS)
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


if __name__ == "__main__":
    main()
