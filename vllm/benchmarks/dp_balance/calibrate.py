# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`calibrate`: the cost model of a server, as `adaptive` learns it from its log."""

import argparse
import statistics
from dataclasses import asdict
from pathlib import Path

from .arguments import MOST_RANKS, whole
from .errors import UsageError
from .options import add_result_args, save_result
from .results import print_table
from .step_time.learned import learn, predicted
from .step_time.steps import read_server_logs

MIN_STEPS = 100
"""Fewer steps are no basis for the constants."""


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
    """Learns, prints the constants, and saves them if asked to."""
    samples, host_seconds = read_server_logs(args.server_log, args.data_parallel_size)
    log = args.server_log[0]
    if len(samples) < MIN_STEPS:
        raise UsageError(
            f"{log}: only {len(samples)} steps can be used, {MIN_STEPS} are needed; "
            "run a longer load."
        )
    for what, has in (
        ("prefills", any(any(sample.prefill) for sample in samples)),
        ("only decodes", any(not any(sample.prefill) for sample in samples)),
    ):
        if not has:
            raise UsageError(f"{log}: no step {what}; run a load that varies.")
    cost = learn([s._replace(seconds=s.seconds + host_seconds) for s in samples])
    error = statistics.fmean(
        abs(predicted(cost, sample) - sample.seconds - host_seconds)
        for sample in samples
    )
    mean = statistics.fmean(sample.seconds for sample in samples) + host_seconds
    print_table(
        [
            ["constant", "value", "unit", "meaning"],
            ["t0", f"{cost.t0 * 1e3:.4g}", "ms", "   empty step"],
            ["a", f"{cost.a * 1e6:.4g}", "µs", "   per decode"],
            ["b", f"{cost.b * 1e6:.4g}", "µs", "   per prompt token"],
            ["c", f"{cost.c * 1e3:.4g}", "ms", "   step with any prefill"],
            ["phi", f"{cost.phi:.2g}", "", "   share of b borne by all ranks"],
            ["padded", f"{cost.padded:g}", "", "   1: ranks without prefill pad"],
        ]
    )
    print(
        f"{len(samples)} steps, of which the model is {error / mean:.1%} of their mean "
        f"off; {host_seconds * 1e3:.3g} ms of the host between steps are in t0."
    )
    save_result(args, "calibrate", {"cost": asdict(cost)})
