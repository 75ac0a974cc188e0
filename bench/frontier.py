"""Runs the frontier: `adaptive` and its baselines on the whole grid of `frontier_grid`.

::

    python bench/frontier.py [--jobs 2] [--minutes 7 [--partial]]

Every run that has ended is kept in build/frontier, so that an interrupted or timed
frontier goes on where it was; a change of the simulator or of a policy makes its own
runs anew. Once nothing is missing, bench/results/frontier.json is written.
"""

import argparse
import hashlib
import json
import platform
import signal
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from frontier_grid import (
    BASELINES,
    BUDGET_SEEDS,
    CHOICE_PHIS,
    CHOICE_SEEDS,
    LIGHT,
    REPORT_SEEDS,
    TTFT_BUDGETS,
    GridCell,
    grid,
)
from kept_runs import Figures, KeptRuns, sources_hash
from scenarios import FIGURES
from vllm.benchmarks.dp_balance.results import versions
from vllm.benchmarks.dp_balance.scenario import simulate_and_measure

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "frontier" / "runs.jsonl"
RESULT = ROOT / "bench" / "results" / "frontier.json"


class Task(NamedTuple):
    """One run."""

    cell: GridCell
    policy: str
    seed: int

    @property
    def key(self) -> str:
        """Names the run, with a hash of all that it depends on."""
        everything = f"{self.cell.scenario} {sources_hash(self.policy)}".encode()
        digest = hashlib.sha256(everything).hexdigest()[:12]
        return f"{self.cell.name}; {self.policy}; {self.seed}; {digest}"


class UnfinishedError(Exception):
    """There was no time for all runs."""


def execute(task: Task) -> tuple[str, Figures]:
    """The figures of one run, with its key."""
    metrics = simulate_and_measure(task.cell.scenario, task.policy, task.seed)
    return task.key, {name: round(getattr(metrics, name), 4) for name in FIGURES}


class Runs(KeptRuns[Task]):
    """The runs of the frontier."""

    def mean(
        self, cell: GridCell, policy: str, seeds: Sequence[int], name: str
    ) -> float:
        """Mean of a figure over the seeds."""
        return statistics.fmean(self[Task(cell, policy, seed)][name] for seed in seeds)

    def make_all(self, title: str, tasks: Sequence[Task]) -> None:
        """Makes those that are missing.

        Raises:
            UnfinishedError: the time was over before.
        """
        if not self.make(title, tasks):
            raise UnfinishedError


def gain(runs: Runs, cell: GridCell, policy: str, seed: int) -> float:
    """What the policy gains over off, as a share.

    Of a closed loop, steady throughput; of an open one, whose throughput is given,
    mean end-to-end latency.
    """
    mine, off = runs[Task(cell, policy, seed)], runs[Task(cell, "off", seed)]
    if cell.is_closed_loop:
        name = "steady_output_throughput"
        return mine[name] / off[name] - 1
    return off["mean_e2el_ms"] / mine["mean_e2el_ms"] - 1


def choose_settings(
    runs: Runs, cells: Sequence[GridCell]
) -> dict[str, dict[str, float]]:
    """Mean gain of each setting of each baseline, over the cells of the choice."""
    settings = [setting for choices in BASELINES.values() for setting in choices]
    cells = [cell for cell in cells if cell.phi in CHOICE_PHIS]
    runs.make_all(
        "choosing settings",
        [
            Task(cell, policy, seed)
            for cell in cells
            for policy in ("off", *settings)
            for seed in CHOICE_SEEDS
        ],
    )
    return {
        baseline: {
            setting: statistics.fmean(
                gain(runs, cell, setting, seed)
                for cell in cells
                for seed in CHOICE_SEEDS
            )
            for setting in choices
        }
        for baseline, choices in BASELINES.items()
    }


def budget_tasks(
    runs: Runs, cells: Sequence[GridCell], seed: int
) -> Iterator[tuple[int, Task]]:
    """Every TTFT budget, with every cell in which off keeps it for 99 % of requests."""
    for budget in TTFT_BUDGETS:
        for cell in cells:
            if runs[Task(cell, "off", seed)]["p99_ttft_ms"] <= 1e3 * budget:
                policy = f"adaptive:ttft_budget={budget}"
                yield budget, Task(cell, policy, seed)


def choose(runs: Runs, cells: Sequence[GridCell]) -> tuple[dict[str, Any], list[str]]:
    """What is known about the choice, and all policies of the comparison."""
    gains = choose_settings(runs, cells)
    chosen = {
        baseline: max(found, key=found.__getitem__) for baseline, found in gains.items()
    }
    choice = {
        "chosen": chosen,
        "choice": {
            "seeds": list(CHOICE_SEEDS),
            "phi": list(CHOICE_PHIS),
            "mean_gain": gains,
        },
    }
    # `align` as shipped is the measure of the latencies, whatever was chosen.
    return choice, list(dict.fromkeys(("adaptive", "off", "align", *chosen.values())))


def make_all(runs: Runs, cells: Sequence[GridCell], policies: Sequence[str]) -> None:
    """Makes what is missing, seed by seed, and the budgets after the first.

    Raises:
        UnfinishedError: the time was over before.
    """
    for seed in REPORT_SEEDS:
        runs.make_all(
            f"seed {seed}",
            [Task(cell, policy, seed) for cell in cells for policy in policies],
        )
        if seed in BUDGET_SEEDS:
            tasks = [task for _, task in budget_tasks(runs, cells, seed)]
            runs.make_all("TTFT budgets", tasks)


def summary(
    runs: Runs, cells: Sequence[GridCell], policies: Sequence[str]
) -> dict[str, object]:
    """All figures, by cell.

    Each is the mean over the seeds with which every policy has been run in the cell.
    """
    seeds = {
        cell: [
            seed
            for seed in REPORT_SEEDS
            if all(Task(cell, policy, seed) in runs for policy in policies)
        ]
        for cell in cells
    }
    return {
        "cells": [
            {
                "workload": cell.workload,
                "ranks": cell.ranks,
                "phi": cell.phi,
                "closed_loop": cell.is_closed_loop,
                "light": cell.workload in LIGHT,
                "seeds": seeds[cell],
                "policies": {
                    policy: {
                        "gain": [
                            round(gain(runs, cell, policy, seed), 5)
                            for seed in seeds[cell]
                        ],
                        **{
                            name: round(runs.mean(cell, policy, seeds[cell], name), 2)
                            for name in FIGURES
                        },
                    }
                    for policy in policies
                },
            }
            for cell in cells
        ],
        "ttft_budgets": [
            {
                "budget_s": budget,
                "cell": cell.name,
                "seed": seed,
                "p99_ttft_ms": runs[task]["p99_ttft_ms"],
                "gain": round(gain(runs, cell, policy, seed), 5),
            }
            for budget_seed in BUDGET_SEEDS
            for budget, task in budget_tasks(runs, cells, budget_seed)
            for cell, policy, seed in [task]
            if task in runs
        ],
    }


def write(document: dict[str, object]) -> None:
    """Writes the document; items of its lists take one line each."""
    parts = []
    for name, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines = ",\n  ".join(json.dumps(item) for item in value)
            text = f"[\n  {lines}\n ]"
        else:
            text = json.dumps(value, ensure_ascii=False)
        parts.append(f" {json.dumps(name)}: {text}")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def main() -> None:
    """Makes what is missing, and the document once nothing is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop after so many"
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="write what there is when the time is over; the settings must be chosen, "
        "and one seed complete",
    )
    arguments = parser.parse_args()
    # As an error, so that the processes end with this one.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    cells = list(grid())
    runs = Runs(KEPT, execute, arguments.jobs, arguments.minutes)
    message = f"Time is over; run it again to go on. Runs are kept in {KEPT}."
    try:
        choice, policies = choose(runs, cells)
    except UnfinishedError:
        sys.exit(message)
    try:
        make_all(runs, cells, policies)
    except UnfinishedError:
        if not arguments.partial:
            sys.exit(message)
        print(message)
    head = {
        "command": "python bench/frontier.py",
        "versions": versions(),
        "interpreter": platform.python_implementation(),
    }
    write(head | choice | summary(runs, cells, policies))
    print(f"Wrote {RESULT}")


if __name__ == "__main__":
    main()
