# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`recommend`: one sentence of advice, and the table it rests on."""

import argparse
import math
import statistics
from collections.abc import Sequence

from .errors import UsageError
from .options import (
    add_policy_arg,
    add_progress_arg,
    add_result_args,
    add_scenario_args,
    policies_from,
)
from .policies import OWN, PolicySpec
from .results import PolicyResult
from .simulate import compare_from

WORTHWHILE = 0.02
"""Requests must end this share earlier; less does not pay for another moving part."""


def advise(results: Sequence[PolicyResult], ttft_budget_ms: float | None) -> str:
    """Which policy to choose, and why, in one sentence.

    The measure is the mean time from sending a request to its last token: in a closed
    loop it falls as throughput rises (Little's law), and in an open one, where
    throughput is given, it weighs a later start against faster tokens.
    One of the results is of "off".
    """
    off = next(result for result in results if result.policy == "off")
    candidates = [result for result in results if result is not off]
    if ttft_budget_ms is not None:
        kept = [r for r in candidates if r.mean("p99_ttft_ms") <= ttft_budget_ms]
        if not kept:
            return (
                "Leave it off: every policy exceeds the TTFT budget of "
                f"{ttft_budget_ms:.0f} ms at the 99th percentile (off: "
                f"{off.mean('p99_ttft_ms'):.0f} ms)."
            )
        candidates = kept
    best = min(candidates, key=lambda result: result.mean("mean_e2el_ms"))
    gains = [-gain for gain in best.gains("mean_e2el_ms", off)]
    gain = statistics.fmean(gains)
    margin = (max(gains) - min(gains)) / 2  # between seeds
    if gain < WORTHWHILE or gain < margin:
        return (
            f"Leave it off: with the best policy, {best.policy}, requests end "
            f"{gain:.1%} earlier on average (±{margin:.1%} between seeds), which is "
            "too little to matter."
        )
    throughput = statistics.fmean(best.gains("steady_output_throughput", off))
    rate = "" if abs(throughput) < WORTHWHILE else f", output tok/s {throughput:+.0%}"
    before, after = off.mean("mean_tpot_ms"), best.mean("mean_tpot_ms")
    tpot = "" if math.isnan(after) else f" TPOT {before:.0f} → {after:.0f} ms,"
    return (
        f"Use --data-parallel-balance {best.policy}: requests end {gain:.0%} earlier "
        f"on average (±{margin:.0%} between seeds){rate},{tpot} median "
        f"TTFT {off.mean('median_ttft_ms') / 1e3:.2f} → "
        f"{best.mean('median_ttft_ms') / 1e3:.2f} s."
    )


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `recommend`."""
    add_policy_arg(parser, OWN)
    parser.add_argument(
        "--ttft-budget-ms",
        type=float,
        default=None,
        help="What the 99th percentile of the time to first token must not exceed.",
    )
    add_scenario_args(parser)
    parser.set_defaults(num_seeds=3)
    add_result_args(parser)
    add_progress_arg(parser)


def main(args: argparse.Namespace) -> None:
    """Compares the policies, prints the table and the advice."""
    policies = policies_from(args)
    unknown = [name for name in policies if PolicySpec.parse(name).name not in OWN]
    if unknown:
        raise UsageError(
            f"--policy {unknown[0]}: a server does not have it; simulate compares it."
        )
    if set(policies) == {"off"}:
        raise UsageError("--policy off: name a policy to compare it with.")
    if args.role == "decode":  # where nothing is held: they differ by the dispatch
        policies = [name for name in policies if name == "adaptive"] or policies[:1]
    comparison = compare_from(args, list(dict.fromkeys(["off", *policies])))
    advice = advise(comparison.results, args.ttft_budget_ms)
    comparison.show()
    print(f"\n{advice}")
    comparison.save(args, "recommend", advice=advice)
