# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`simulate`: several policies in one scenario, with a progress bar and a table."""

import argparse
import json
import multiprocessing
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any, NamedTuple

try:
    from tqdm import tqdm
except ModuleNotFoundError:  # in a clone: runs without a bar
    tqdm = None  # type: ignore[assignment,misc]

from ..cores import usable_cores
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
    """A scenario, its seeds, and the results of each policy."""

    scenario: Scenario
    seeds: Sequence[int]
    results: Sequence[PolicyResult]

    def gains(self) -> dict[str, float | None]:
        """By policy the share by which mean latency is lower than with off.

        It is negative if latency is higher, and None if no part of a run is steady.
        """
        off = next((result for result in self.results if result.policy == "off"), None)
        if off is None:
            return {}
        later = {
            result.policy: result.gain("steady_mean_e2el_ms", off)
            for result in self.results
            if result is not off
        }
        return {name: None if gain is None else -gain for name, gain in later.items()}

    def show(self) -> None:
        """Prints the table."""
        print_table(table_rows(self.results))

    def save(self, args: argparse.Namespace, kind: str, **extra: object) -> None:
        """Saves as `save_result` does, with `extra` parts of the document."""
        parts = {
            "scenario": json.loads(json.dumps(asdict(self.scenario), default=str)),
            "seeds": list(self.seeds),
            "results": [asdict(result) for result in self.results],
            "gains": self.gains(),
        }
        save_result(args, kind, parts | extra)


def compare_from(args: argparse.Namespace, policies: Sequence[str]) -> Comparison:
    """Runs every policy with every seed, on all usable cores.

    Raises:
        UsageError: an option is wrong, or the scenario cannot be run.
    """
    scenario = scenario_from(args)
    seeds = range(args.seed, args.seed + args.num_seeds)
    runs = [*product(policies, seeds)]
    # None: no bar unless standard error is a terminal.
    hidden = True if args.disable_tqdm else None
    bar = None if tqdm is None else partial(tqdm, disable=hidden)
    cores = min(usable_cores(), len(runs))
    if cores == 1:
        figures = [_run_here(scenario, policy, seed, bar) for policy, seed in runs]
    else:
        figures = _run_on_cores(scenario, runs, cores, bar)
    count = len(seeds)
    results = [
        PolicyResult(policy, figures[number * count : (number + 1) * count])
        for number, policy in enumerate(policies)
    ]
    return Comparison(scenario, seeds, results)


def _run_here(scenario: Scenario, policy: str, seed: int, bar: Any) -> Metrics:
    """The figures of one run; its bar counts requests."""
    if bar is None:
        return simulate_and_measure(scenario, policy, seed)
    total = scenario.workload.num_prompts
    with bar(desc=f"{policy}, seed {seed}", total=total, unit="req") as shown:
        return simulate_and_measure(scenario, policy, seed, on_done=shown.update)


def _run_on_cores(
    scenario: Scenario, runs: Sequence[tuple[str, int]], cores: int, bar: Any
) -> list[Metrics]:
    """The figures of the runs, each in another process; a bar counts runs."""
    # Ctrl-C reaches all processes of a terminal; only this one may report it.
    ignored = signal.SIGINT, signal.SIG_IGN
    pool = ProcessPoolExecutor(cores, initializer=signal.signal, initargs=ignored)
    with pool:
        try:
            futures = [pool.submit(simulate_and_measure, scenario, *r) for r in runs]
            ended = as_completed(futures)
            if bar is not None:
                ended = bar(ended, desc="simulated", total=len(futures), unit="run")
            for future in ended:
                future.result()
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def run(args: argparse.Namespace) -> None:
    """Compares the policies, prints the table, and saves it with --save-result."""
    comparison = compare_from(args, policies_from(args))
    comparison.show()
    if reason := unsteady(comparison.results):
        print(f"warning: {reason}", file=sys.stderr)
    comparison.save(args, "simulate")
