"""How many API servers: windows of real traces, sent through 1, 4 and 8 front-ends.

::

    python bench/front_ends.py

The windows, rates and constants are those cells of bench/results/traces.json with eight
ranks, phi 0 and 0.5, and 60 and 90 % of what `off` serves. Each front-end knows its own
requests at once and the others' as far as the ranks publish them.
"""

import json
import math
import platform
import statistics
from dataclasses import replace
from typing import Any

import trace_grid
from tqdm import tqdm
from vllm.benchmarks.dp_balance.requests.arrivals import Frontend
from vllm.benchmarks.dp_balance.results import versions, write_json
from vllm.benchmarks.dp_balance.scenario import simulate

POLICIES = ("adaptive", trace_grid.COUNTED, "off")
SERVERS = (1, 4, 8)
COSTS = ("phi 0", "phi 0.5")
LOADS = (0.6, 0.9)
FIGURES = ("mean_e2el", "p99_ttft")
RESULT = trace_grid.ROOT / "bench" / "results" / "front_ends.json"


def cells() -> list[dict[str, Any]]:
    """The cells of the traces' grid that are run again."""
    found = json.loads(trace_grid.RESULT.read_text(encoding="utf-8"))["cells"]
    return [
        cell
        for cell in found
        if (cell["ranks"], cell["slots"]) == trace_grid.SHAPE
        and cell["cost"] in COSTS
        and cell["load"] in LOADS
    ]


def figures(cell: dict[str, Any], policy: str, servers: int) -> dict[str, float]:
    """What users feel of one run."""
    (window,) = (
        window
        for window in trace_grid.WINDOWS
        if (window.trace, window.first) == (cell["trace"], cell["first"])
    )
    task = trace_grid.Task(window, cell["cost"], policy, cell["rate"])
    scenario = replace(task.scenario(), frontend=Frontend(api_servers=servers))
    served = "adaptive" if policy == trace_grid.COUNTED else policy
    return trace_grid.figures(simulate(scenario, served))


def main() -> None:
    """Runs all, and writes each as a ratio to `adaptive` with one front-end."""
    grid = cells()
    total = len(grid) * len(POLICIES) * len(SERVERS)
    ratios: dict[tuple[str, int], list[dict[str, float]]] = {}
    with tqdm(desc="front-ends", total=total, unit="run", disable=None) as bar:
        for cell in grid:
            base: dict[str, float] = {}
            for policy in POLICIES:
                for servers in SERVERS:
                    found = figures(cell, policy, servers)
                    base = base or found
                    ratios.setdefault((policy, servers), []).append(
                        {name: found[name] / base[name] for name in FIGURES}
                    )
                    bar.update()
    document = {
        "command": "python bench/front_ends.py",
        "versions": versions(),
        "interpreter": platform.python_implementation(),
        "cells": len(grid),
        "rows": [
            {
                "policy": policy,
                "servers": servers,
                **{
                    name: {
                        "mean": math.exp(
                            statistics.fmean(math.log(each[name]) for each in found)
                        ),
                        "worst": max(each[name] for each in found),
                    }
                    for name in FIGURES
                },
            }
            for (policy, servers), found in ratios.items()
        ],
    }
    write_json(RESULT, document)
    print(f"Wrote {RESULT}")


if __name__ == "__main__":
    main()
