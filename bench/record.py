# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The options and the result file that the benchmarks of single costs share."""

import argparse
import json
import os
import platform
import runpy
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path


def parser(description: str, calls: int) -> argparse.ArgumentParser:
    """A parser with --calls and --output.

    Args:
        description: the docstring of the benchmark; its first line is used.
        calls: default of the calls per figure.
    """
    made = argparse.ArgumentParser(description=description.partition("\n")[0])
    made.add_argument("--calls", type=int, default=calls, help="calls per figure")
    made.add_argument("--output", type=Path, help="JSON file to write")
    return made


def spread(times_us: Sequence[float]) -> dict[str, float]:
    """Median, first and ninth tenth of times in microseconds."""
    tenths = statistics.quantiles(times_us, n=10)
    return {
        "median_us": round(statistics.median(times_us), 2),
        "p10_us": round(tenths[0], 2),
        "p90_us": round(tenths[-1], 2),
    }


def tree_fingerprint() -> str:
    """Hash of the policies in this tree, which need not be those that are installed."""
    folder = Path(__file__).parents[1] / "vllm" / "benchmarks" / "dp_balance"
    names = runpy.run_path(str(folder / "fingerprint.py"))
    found: str = names["policies_fingerprint"]()
    return found


def write(
    arguments: argparse.Namespace, results: Sequence[object], policies: str
) -> None:
    """Writes what was run, on what, and what came out, if --output was given.

    Args:
        arguments: of `parser`.
        results: a JSON object each.
        policies: hash of the policies that were measured.
    """
    if arguments.output is None:
        return
    report = {
        "command": shlex.join(["python", *sys.argv]),
        "python": platform.python_version(),
        "policies": policies,
        "machine": f"{platform.machine()}, {_processor()}, {os.cpu_count()} of them",
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "calls": arguments.calls,
        "results": list(results),
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
