# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`simulate`: several policies in one scenario, with a progress bar and a table."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

try:
    from tqdm import tqdm
except ModuleNotFoundError:  # a clone: runs without, and without a bar
    tqdm = None  # type: ignore[assignment,misc]

from .metrics import Metrics
from .options import (
    add_result_args,
    add_scenario_args,
    policies_from,
    save_result,
    scenario_from,
)
from .results import PolicyResult, print_table, table_rows, unsteady
from .scenario import Scenario, simulate_and_measure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `simulate`."""
    add_scenario_args(parser)
    add_result_args(parser)


class Comparison(NamedTuple):
    """What was compared, and what came out."""

    scenario: Scenario
    seeds: Sequence[int]
    results: Sequence[PolicyResult]

    def gains(self) -> dict[str, float | None]:
        """By policy, how much earlier requests end than with off.

        A share of the mean; less than 0 if they end later, None if nothing is steady.
        """
        off = next((found for found in self.results if found.policy == "off"), None)
        if off is None:
            return {}
        later = {
            found.policy: found.gain("steady_mean_e2el_ms", off)
            for found in self.results
            if found is not off
        }
        return {name: None if gain is None else -gain for name, gain in later.items()}

    def show(self) -> None:
        """Prints the table."""
        print_table(table_rows(self.results))

    def save(self, args: argparse.Namespace, kind: str, **more: object) -> None:
        """As `save_result`, with `more` parts of the document."""
        parts = {
            "scenario": json.loads(json.dumps(asdict(self.scenario), default=str)),
            "seeds": list(self.seeds),
            "results": [asdict(result) for result in self.results],
            "gains": self.gains(),
        }
        save_result(args, kind, parts | more)


def compare_from(args: argparse.Namespace, policies: Sequence[str]) -> Comparison:
    """Runs every policy with every seed as the options say.

    Raises:
        UsageError: an option is wrong, or the scenario cannot be run.
    """
    seeds = range(args.seed, args.seed + args.num_seeds)

    def figures(policy: str, seed: int) -> Metrics:
        """Those of one run, with a progress bar."""
        if tqdm is None:
            return simulate_and_measure(scenario, policy, seed)
        with tqdm(
            desc=f"{policy}, seed {seed}",
            total=scenario.workload.num_prompts,
            unit="req",
            # None: no bar unless standard error is a terminal.
            disable=True if args.disable_tqdm else None,
        ) as bar:
            return simulate_and_measure(scenario, policy, seed, on_done=bar.update)

    scenario = scenario_from(args)
    results = [
        PolicyResult(policy, [figures(policy, seed) for seed in seeds])
        for policy in policies
    ]
    return Comparison(scenario, seeds, results)


def run(args: argparse.Namespace) -> None:
    """Compares the policies, prints the table, and saves it if asked to."""
    comparison = compare_from(args, policies_from(args))
    comparison.show()
    if why := unsteady(comparison.results):
        print(f"warning: {why}", file=sys.stderr)
    comparison.save(args, "simulate")
