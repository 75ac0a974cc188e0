# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`calibrate`: the constants of the cost model of a server that runs."""

import argparse
import math
from dataclasses import asdict
from pathlib import Path

from .arguments import MOST_RANKS, whole
from .errors import UsageError
from .options import add_result_args, save_result
from .results import print_table
from .step_time.fit import Fit, fit
from .step_time.steps import read_server_logs

MIN_STEPS = 100
"""Fewer steps are no basis for five constants."""


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `calibrate`."""
    parser.add_argument(
        "--server-log",
        type=Path,
        nargs="+",
        required=True,
        help="Log of `vllm serve --enable-logging-iteration-details` under load, one "
        "per node. Identifies all constants if the load varies.",
    )
    ranks = whole(2, MOST_RANKS)
    parser.add_argument("--data-parallel-size", "-dp", type=ranks, required=True)
    add_result_args(parser)


def main(args: argparse.Namespace) -> None:
    """Fits, prints the constants with their confidence, and saves them if asked to."""
    samples, host_seconds = read_server_logs(args.server_log, args.data_parallel_size)
    if len(samples) < MIN_STEPS:
        raise UsageError(
            f"{args.server_log[0]}: only {len(samples)} steps can be used, {MIN_STEPS} "
            "are needed; run a longer load."
        )
    fitted = fit(samples, host_seconds)
    print_fit(fitted)
    save_result(args, "calibrate", {"fit": asdict(fitted)})


UNITS = (
    ("t0", "empty step", 1e3, "ms"),
    ("a", "per decode", 1e6, "µs"),
    ("b", "per prompt token", 1e6, "µs"),
    ("c", "step with any prefill", 1e3, "ms"),
    ("experts", "to read all experts", 1e3, "ms"),
    ("phi", "share of b borne by all ranks", 1.0, ""),
)


def print_fit(fitted: Fit) -> None:
    """Prints each constant with its 95 % interval, or why it is not known."""
    rows = [["constant", "value", "±", "unit", "meaning"]]
    for name, meaning, factor, unit in UNITS:
        estimate = getattr(fitted, name)
        value, width = (
            f"{number * factor:.{digits}g}" if math.isfinite(number) else "-"
            for number, digits in ((estimate.value, 4), (estimate.half_width, 2))
        )
        if estimate.note and name != "phi":
            width = "?"
        rows.append([name, value, width, unit, f"   {meaning}"])
    print_table(rows)
    print(
        f"{fitted.steps} steps; residual {fitted.residual:.1%} of the mean step; "
        f"{fitted.host_seconds * 1e3:.3g} ms of the host between steps, which the "
        "saved t0 includes."
    )
    for name, *_ in UNITS:
        if note := getattr(fitted, name).note:
            print(f"{name} cannot be identified: {note}.")
    if len(fitted.costs) > 1:
        low, high = fitted.costs[0].phi, fitted.costs[-1].phi
        print(
            f"phi has the range {low:.2g} to {high:.2g}; simulate and recommend "
            "compute both ends. A load that varies tells it better."
        )
