# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`simulate`: several policies in one scenario, with a progress bar and a table."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from tqdm import tqdm

from .metrics import Metrics, measure
from .options import (
    add_result_args,
    add_scenario_args,
    policies_from,
    save_result,
    scenario_from,
)
from .results import PolicyResult, print_table, table_rows, unsteady
from .scenario import Scenario, simulate


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `simulate`."""
    add_scenario_args(parser)
    add_result_args(parser)


def compare_from(
    args: argparse.Namespace, policies: Sequence[str]
) -> tuple[Scenario, list[PolicyResult]]:
    """Runs every policy with every seed as the options say, in one scenario.

    Raises:
        UsageError: an option is wrong, or the scenario cannot be run.
    """
    seeds = range(args.seed, args.seed + args.num_seeds)

    def figures(policy: str, seed: int) -> Metrics:
        """Those of one run, with a progress bar."""
        with tqdm(
            desc=f"{policy}, seed {seed}",
            total=scenario.workload.num_prompts,
            unit="req",
            # None: no bar unless standard error is a terminal.
            disable=None,
        ) as bar:
            return measure(simulate(scenario, policy, seed, on_done=bar.update))

    scenario = scenario_from(args)
    results = [
        PolicyResult(policy, [figures(policy, seed) for seed in seeds])
        for policy in policies
    ]
    return scenario, results


def main(args: argparse.Namespace) -> None:
    """Compares the policies, prints the table, and saves it if asked to."""
    scenario, results = compare_from(args, policies_from(args))
    print_table(table_rows(results))
    if why := unsteady(results):
        print(f"warning: {why}", file=sys.stderr)
    parts = {
        "scenario": json.loads(json.dumps(asdict(scenario), default=str)),
        "results": [asdict(result) for result in results],
    }
    save_result(args, "simulate", parts)
