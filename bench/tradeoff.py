"""Which mean end-to-end times, TTFT tails and goodputs can be had together on traces.

::

    python bench/tradeoff.py [--jobs 1] [--minutes 7]

Runs the baselines, `adaptive`, `adaptive` with TTFT budgets and with other constants on
the windows that these constants were chosen by, writes bench/results/tradeoff.json once
nothing is missing; `tradeoff_picture.py` draws it. Runs are kept in build/tradeoff.
"""

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trace_grid
import traces_data
from kept_runs import Figures, KeptRuns
from trace_grid import Task, Window
from vllm.benchmarks.dp_balance.results import versions
from vllm.v1.core.sched.balance.policies import adaptive

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "tradeoff" / "runs.jsonl"
RESULT = ROOT / "bench" / "results" / "tradeoff.json"
COSTS = ("phi 0", "phi 0.5")
LOADS = (0.3, 0.6, 0.9, 1.3)
LIGHT = LOADS[0]
WINDOWS = (
    Window("Azure code", "azure_2023_code.csv", 0, 1500),
    Window("Azure conv", "azure_2023_conv.csv", 0, 1500),
    Window("Mooncake", "mooncake_conversation.jsonl", 0, 600),
    Window("Azure code", "azure_2023_code.csv", 3000, 1500),
    Window("Azure conv", "azure_2023_conv.csv", 6000, 1500),
    Window("Mooncake", "mooncake_conversation.jsonl", 1500, 600),
)
"""Those of the choice; the results are reported on others."""
BASELINES = (
    "off",
    "cap",
    "align",
    "sglang-30",
    "sglang-100",
    "sglang23-30",
    "interval-64",
    "trtllm",
)
FIRST_TOKENS = (0.0, 0.01, 0.05, 0.25)
"""Shares of the mean that are given for first tokens; the policy's is 0.002."""
BUDGETS = (1, 2, 4)
"""TTFT budgets in seconds."""


@dataclass(frozen=True)
class Variant:
    """A policy, and the share that it gives for first tokens if not its own."""

    policy: str
    first_tokens: float | None = None

    @property
    def name(self) -> str:
        """For the picture."""
        if self.first_tokens is None:
            return self.policy
        return f"{self.policy}, {self.first_tokens:g} for first tokens"


ADAPTIVE = Variant("adaptive")
VARIANTS = (
    *map(Variant, BASELINES),
    ADAPTIVE,
    *(Variant(f"adaptive:ttft_budget={seconds}") for seconds in BUDGETS),
    *(Variant("adaptive", share) for share in FIRST_TOKENS),
)


@dataclass(frozen=True)
class VariantTask:
    """One run."""

    variant: Variant
    task: Task

    @property
    def key(self) -> str:
        """Names the run, with a hash of all that it depends on."""
        return f"{self.variant.first_tokens} {self.task.key}"


def execute(run: VariantTask) -> tuple[str, Figures]:
    """The figures of one run, with its key."""
    share = run.variant.first_tokens
    if share is None:
        return run.key, trace_grid.execute(run.task)[1]
    own = adaptive._FIRST_TOKENS
    adaptive._FIRST_TOKENS = share
    try:
        return run.key, trace_grid.execute(run.task)[1]
    finally:
        adaptive._FIRST_TOKENS = own


Runs = KeptRuns[VariantTask]


def capacities() -> list[VariantTask]:
    """The runs that tell what off serves."""
    off = Variant("off")
    return [
        VariantTask(off, Task(window, cost, off.policy))
        for window in WINDOWS
        for cost in COSTS
    ]


def cells(runs: Runs) -> Iterator[tuple[Task, float]]:
    """The run of off in each cell, and the load."""
    for capacity in capacities():
        window, cost = capacity.task.window, capacity.task.cost
        for load in LOADS:
            rate = round(load * runs[capacity]["rate"], 4)
            yield Task(window, cost, "off", rate), load


def of_variant(variant: Variant, off: Task) -> VariantTask:
    """The run of the variant in the same cell."""
    return VariantTask(
        variant, Task(off.window, off.cost, variant.policy, off.rate, off.shape)
    )


def as_cell(runs: Runs, variant: Variant, off: Task, load: float) -> traces_data.Cell:
    """A cell of the trace grid in which the variant stands for `adaptive`."""
    figures = {name: runs[of_variant(Variant(name), off)] for name in BASELINES}
    return {
        "trace": off.window.trace,
        "load": load,
        "policies": {"adaptive": runs[of_variant(variant, off)], **figures},
    }


def summary(runs: Runs) -> list[dict[str, object]]:
    """A line per variant and trace: what it gives up of each to the others."""
    lines: list[dict[str, object]] = []
    for variant in VARIANTS:
        found = [as_cell(runs, variant, off, load) for off, load in cells(runs)]
        for trace in dict.fromkeys(cell["trace"] for cell in found):
            of_trace = [cell for cell in found if cell["trace"] == trace]
            light = [cell for cell in of_trace if cell["load"] == LIGHT]
            lines.append(
                {
                    "variant": variant.name,
                    "trace": trace,
                    "mean": traces_data.mean_lead(of_trace),
                    "worst_mean": max(map(traces_data.lead, of_trace)),
                    "tail": traces_data.mean_tail(of_trace),
                    "tails_met": sum(
                        traces_data.tail_ratio(cell) <= traces_data.TAIL
                        for cell in of_trace
                    ),
                    "cells": len(of_trace),
                    "light_mean": traces_data.mean_lead(light),
                    "light_goodput": min(map(traces_data.goodput_lead, light)),
                }
            )
    return lines


def main() -> None:
    """Makes what is missing, and writes the result once nothing is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop after so many"
    )
    arguments = parser.parse_args()
    runs = Runs(KEPT, execute, arguments.jobs, arguments.minutes)
    if not runs.make("capacity", capacities()) or not runs.make(
        "variants",
        [of_variant(v, off) for off, _ in cells(runs) for v in VARIANTS],
    ):
        sys.exit(f"Time is over; run it again to go on. Runs are kept in {KEPT}.")
    document = {
        "command": "python bench/tradeoff.py",
        "versions": versions(),
        "interpreter": platform.python_implementation(),
        "windows": [f"{window.trace} from {window.first}" for window in WINDOWS],
    }
    head = json.dumps(document, indent=1)[:-2]
    lines = ",\n  ".join(json.dumps(line) for line in summary(runs))
    RESULT.write_text(f'{head},\n "points": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
    print(f"Wrote {RESULT}")


if __name__ == "__main__":
    main()
