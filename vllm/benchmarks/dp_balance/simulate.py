# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`simulate`: several policies in one scenario, with a progress bar and a table."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

from tqdm import tqdm

from .errors import UsageError
from .metrics import Metrics
from .options import (
    add_result_args,
    add_scenario_args,
    policies_from,
    save_result,
    scenarios_from,
)
from .requests.traces import CountTokens
from .results import PolicyResult, cell, print_table, table_rows, unsteady
from .scenario import Scenario, simulate_and_measure


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `simulate`."""
    add_scenario_args(parser)
    add_result_args(parser)


class Comparison(NamedTuple):
    """What was compared, and what came out."""

    scenario: Scenario
    seeds: Sequence[int]
    results: Sequence[PolicyResult]
    others: Sequence["Comparison"] = ()
    """With other cost models that the calibration cannot tell from this one, in which
    the best policy gains more."""

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

    @property
    def most(self) -> float:
        """The gain of the best policy."""
        return max(
            (gain for gain in self.gains().values() if gain is not None), default=0.0
        )

    def show(self) -> None:
        """Prints the table, and how much gains depend on what is not known."""
        print_table(table_rows(self.results))
        if not self.others:
            return
        phi, phis = self.scenario.cost.phi, [o.scenario.cost.phi for o in self.others]
        print(
            f"\nThe calibration does not tell phi; the table is with {phi:.2g}, where "
            "policies gain least. Requests end earlier than with off by, with "
            f"{phi:.2g} and with {', '.join(f'{other:.2g}' for other in phis)}:"
        )
        for policy, gain in self.gains().items():
            ends = [gain, *(other.gains()[policy] for other in self.others)]
            print(f"  {policy}: {' to '.join(map(cell, ends))}")

    def save(self, args: argparse.Namespace, kind: str, **more: object) -> None:
        """As `save_result`, with `more` parts of the document."""
        parts = {
            "scenario": json.loads(json.dumps(asdict(self.scenario), default=str)),
            "seeds": list(self.seeds),
            "results": [asdict(result) for result in self.results],
            "gains": [self.gains(), *(o.gains() for o in self.others)],
        }
        save_result(args, kind, parts | more)


def compare_from(args: argparse.Namespace, policies: Sequence[str]) -> Comparison:
    """Runs every policy with every seed as the options say.

    Raises:
        UsageError: an option is wrong, or the scenario cannot be run.
    """
    seeds = range(args.seed, args.seed + args.num_seeds)
    found = []
    count_tokens = _token_counter(args)

    def figures(scenario: Scenario, policy: str, seed: int) -> Metrics:
        """Those of one run, with a progress bar."""
        with tqdm(
            desc=f"{policy}, seed {seed}",
            total=scenario.workload.num_prompts,
            unit="req",
            # None: no bar unless standard error is a terminal.
            disable=True if args.disable_tqdm else None,
        ) as bar:
            watched = {"count_tokens": count_tokens, "on_done": bar.update}
            return simulate_and_measure(scenario, policy, seed, **watched)

    for scenario in scenarios_from(args):
        results = [
            PolicyResult(policy, [figures(scenario, policy, seed) for seed in seeds])
            for policy in policies
        ]
        found.append(Comparison(scenario, seeds, results))
    least, *others = sorted(found, key=lambda each: each.most)
    return least._replace(others=others)


def _token_counter(args: argparse.Namespace) -> CountTokens | None:
    if args.tokenizer is None or args.dataset_path is None:
        return None
    try:
        from vllm.tokenizers import get_tokenizer

        tokenizer = get_tokenizer(args.tokenizer)
    except Exception as error:  # of any of its libraries
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UsageError(
            f"--tokenizer {args.tokenizer}: cannot be loaded ({reason})."
        ) from None
    return lambda prompt: len(tokenizer.encode(prompt))


def main(args: argparse.Namespace) -> None:
    """Compares the policies, prints the table, and saves it if asked to."""
    comparison = compare_from(args, policies_from(args))
    comparison.show()
    if why := unsteady(comparison.results):
        print(f"warning: {why}", file=sys.stderr)
    comparison.save(args, "simulate")
