# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`simulate`: several policies in one scenario, with a progress bar and a table."""

import argparse
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tqdm import tqdm

from .metrics import measure
from .options import (
    add_policy_arg,
    add_progress_arg,
    add_result_args,
    add_scenario_args,
    policies_from,
    result_path,
    scenario_from,
    seeds_from,
    token_counter_from,
)
from .policies import OWN
from .results import PolicyResult, as_document, print_table, table_rows, write_json
from .scenario import Scenario, simulate
from .traces import CountTokens


def compare(
    scenario: Scenario,
    policies: Sequence[str],
    seeds: Iterable[int],
    *,
    count_tokens: CountTokens | None = None,
    disable_tqdm: bool = False,
) -> list[PolicyResult]:
    """Runs every policy with every seed.

    Raises:
        UsageError: the scenario cannot be run.
    """
    results = []
    for policy in policies:
        runs = []
        for seed in seeds:
            # None: no bar unless standard error is a terminal.
            with tqdm(
                desc=f"{policy}, seed {seed}",
                total=scenario.workload.num_prompts,
                unit="req",
                disable=True if disable_tqdm else None,
            ) as bar:
                run = simulate(
                    scenario,
                    policy,
                    seed,
                    count_tokens=count_tokens,
                    on_done=bar.update,
                )
            concurrency = scenario.traffic.max_concurrency
            runs.append(measure(run, scenario.limits, concurrency, scenario.cost))
        results.append(PolicyResult(policy, runs))
    return results


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `simulate`."""
    add_policy_arg(parser, OWN)
    add_scenario_args(parser)
    add_result_args(parser)
    add_progress_arg(parser)


class Comparison(NamedTuple):
    """What was compared, and what came out."""

    scenario: Scenario
    seeds: Sequence[int]
    results: Sequence[PolicyResult]

    def show(self) -> None:
        """Prints the table."""
        print_table(table_rows(self.results))

    def save(self, args: argparse.Namespace, kind: str, **more: object) -> None:
        """Writes the result, if the options ask for it.

        Args:
            args: the options, those of `add_result_args` among them.
            kind: the subcommand.
            more: further parts of the document.

        Raises:
            UsageError: the file cannot be written.
        """
        if args.save_result:
            path = result_path(args, kind)
            document = as_document(kind, self.scenario, self.seeds, self.results)
            write_json(path, document | more)
            print(f"Saved to {path}")


def compare_from(args: argparse.Namespace, policies: Sequence[str]) -> Comparison:
    """Compares the policies as the options say.

    Raises:
        UsageError: an option is wrong, or the scenario cannot be run.
    """
    seeds, scenario = seeds_from(args), scenario_from(args)
    results = compare(
        scenario,
        policies,
        seeds,
        count_tokens=token_counter_from(args),
        disable_tqdm=args.disable_tqdm,
    )
    return Comparison(scenario, seeds, results)


def main(args: argparse.Namespace) -> None:
    """Compares the policies, prints the table, and saves it if asked to."""
    comparison = compare_from(args, policies_from(args))
    comparison.show()
    comparison.save(args, "simulate")
