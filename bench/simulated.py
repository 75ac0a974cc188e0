"""Makes the simulated results again, and fills the tables of the pages with them.

::

    python bench/simulated.py [RESULT ...] [--jobs 2] [--minutes N] [--tables]

It runs the simulator of this tree with any Python that has tqdm, and no vLLM; PyPy is
five times as fast. Runs that have ended are kept in build/bench, by the hash of the
sources, so that it can be stopped and run again to go on. A result is written to
bench/results once none of its runs is missing; with PyPy all of them take ten minutes
on two idle cores. `grids.py` defines the runs, `tables.py` the tables.
"""

import argparse
import hashlib
import json
import multiprocessing
import platform
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

import tables
from grids import GRIDS, VARIANTS, Cell
from rivals.known import CONTROLLERS
from rivals.routers import ROUTERS
from vllm_balance.code_hash import CORE, code_hash
from vllm_balance.core.policies import LatencyLimits
from vllm_balance.simulator import loop, scenario
from vllm_balance.simulator.front_end.load_balancers import LOAD_BALANCERS
from vllm_balance.simulator.metrics import attainment, measure, percentile
from vllm_balance.simulator.requests.arrivals import ClientTraffic
from vllm_balance.simulator.results import versions
from vllm_balance.simulator.scenario import Scenario

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
MEASURED = (
    "output_throughput",
    "mean_tpot_ms",
    "median_ttft_ms",
    "p99_ttft_ms",
    "mean_e2el_ms",
)
"""Fields of `Metrics` over the whole run."""

Figures = dict[str, float]


class Task(NamedTuple):
    """A run of the simulator."""

    scenario: Scenario
    policy: str
    seed: int

    @property
    def key(self) -> str:
        """A hash that is equal for equal runs of any cell, in any folder."""
        named = repr(self).replace(f"{ROOT}/", "")
        return hashlib.sha256(named.encode()).hexdigest()[:16]


def execute(task: Task) -> tuple[str, Figures]:
    """The figures of one run, with its key."""
    run = scenario.simulate(
        *task, controllers=CONTROLLERS, routers={**LOAD_BALANCERS, **ROUTERS}
    )
    metrics = measure(run)
    measured = {name: getattr(metrics, name) for name in MEASURED}
    # A prefill instance has no time between tokens.
    figures = {n: round(v, 2) for n, v in measured.items() if v is not None}
    for name, (ttft, tpot) in tables.LIMITS.items():
        limits = LatencyLimits(ttft / 1e3, tpot / 1e3)
        figures[name] = round(attainment(run, limits), 4)
    per_token = [(r.done - r.sent) / r.output_len for r in run.requests]
    figures["p90_per_token_ms"] = round(1e3 * percentile(sorted(per_token), 0.9), 2)
    prompts = sum(request.prompt_len for request in run.requests)
    figures["computed"] = round(sum(step.prefill for step in run.steps) / prompts, 4)
    figures["requests_per_s"] = round(served_rate(run), 4)
    return task.key, figures


def served_rate(run: loop.Run) -> float:
    """Requests that end per second, without the first tenth and the final drain."""
    done = sorted(request.done for request in run.requests)
    start = done[len(done) // 10]
    if run.last_sent <= start:
        return 0.0
    served = sum(start < ended <= run.last_sent for ended in done)
    return served / (run.last_sent - start)


def sources_hash() -> str:
    """A hash of the policies and of the simulator."""
    return code_hash(CORE, Path(loop.__file__).parent)


class Runs:
    """The figures of runs, kept in a file with a line of JSON each."""

    def __init__(self, folder: Path, jobs: int, minutes: float) -> None:
        """Reads the runs of these sources.

        `jobs` processes make the missing ones; after `minutes` none is begun.
        """
        self.path = folder / f"{sources_hash()}.jsonl"
        self._jobs = jobs
        self._end = time.monotonic() + 60 * minutes
        self._figures: dict[str, Figures] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    key, figures = json.loads(line)
                except ValueError:
                    continue  # what was being written when a run was killed
                self._figures[key] = figures

    def __getitem__(self, task: Task) -> Figures:
        return self._figures[task.key]

    def make(self, title: str, tasks: Iterable[Task]) -> bool:
        """Makes the missing runs until the time is over; whether none is missing."""
        missing = {task.key: task for task in tasks if task.key not in self._figures}
        if not missing:
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with (
            self.path.open("a", encoding="utf-8") as file,
            multiprocessing.Pool(self._jobs) as pool,
            tqdm(desc=title, total=len(missing), unit="run", mininterval=2) as bar,
        ):
            file.write("\n")  # ends what a killed run may have left
            for key, figures in pool.imap_unordered(execute, missing.values()):
                self._figures[key] = figures
                file.write(json.dumps([key, figures]) + "\n")
                file.flush()
                bar.update()
                if time.monotonic() > self._end:
                    break
        return missing.keys() <= self._figures.keys()


def capacity(cell: Cell) -> Task:
    """The run whose served rate is 100 % of the load of a cell."""
    return Task(cell.scenario, "off", cell.seeds[0])


def tasks(cell: Cell, runs: Runs) -> dict[str, list[Task]]:
    """By policy the runs, one for each seed."""
    base = cell.scenario
    if cell.load is not None:
        rate = round(cell.load * runs[capacity(cell)]["requests_per_s"], 4)
        traffic = ClientTraffic(request_rate=rate)
        if cell.own_rate is not None:
            faster = rate / cell.own_rate
            traffic = ClientTraffic(self_timed=True, rate_multiplier=faster)
        base = replace(base, traffic=traffic)
    by_policy = {}
    for name in cell.policies:
        policy, changes = VARIANTS.get(name, (name, {}))
        served = replace(base, **changes)
        by_policy[name] = [Task(served, policy, seed) for seed in cell.seeds]
    return by_policy


def summary(cell: Cell, runs: Runs) -> dict[str, Any]:
    """A cell's labels, and by policy the mean of each figure over the seeds."""
    policies = {}
    for name, of_policy in tasks(cell, runs).items():
        by_seed = [runs[task] for task in of_policy]
        policies[name] = {
            figure: round(statistics.fmean(run[figure] for run in by_seed), 4)
            for figure in by_seed[0]
        }
    return {**cell.labels, "policies": policies}


def make(name: str, cells: Sequence[Cell], runs: Runs, folder: Path) -> bool:
    """Makes a result's missing runs and writes it; False if the time was over."""
    rates = [capacity(cell) for cell in cells if cell.load is not None]
    if not runs.make(f"{name}: what is served", rates):
        return False
    of_cells = (of for cell in cells for of in tasks(cell, runs).values())
    if not runs.make(name, (task for of_policy in of_cells for task in of_policy)):
        return False
    head = {"versions": versions(), "interpreter": platform.python_implementation()}
    text = json.dumps(head, indent=1)[:-2]
    cell_lines = [json.dumps(summary(cell, runs), ensure_ascii=False) for cell in cells]
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n  ".join(cell_lines)
    path.write_text(f'{text},\n "cells": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
    print(f"Wrote {path}")
    return True


def main() -> None:
    """Makes the named results, or all, and fills the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", nargs="*", metavar="RESULT", help=", ".join(GRIDS))
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no run after these"
    )
    parser.add_argument("--tables", action="store_true", help="only fill the tables")
    options = parser.parse_args()
    if unknown := sorted(set(options.results) - set(GRIDS)):
        parser.error(f"{', '.join(unknown)}: no such result; choose {', '.join(GRIDS)}")
    # As an error, so that the processes end with this one.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if not options.tables:
        runs = Runs(ROOT / "build" / "bench", options.jobs, options.minutes)
        for name in options.results or GRIDS:
            if not make(name, list(GRIDS[name]()), runs, RESULTS):
                sys.exit(
                    f"Time is over; run it again to go on. Runs are in {runs.path}."
                )
    tables.fill(ROOT)


if __name__ == "__main__":
    main()
