# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`recommend`: one sentence of advice, and the table on which it is based."""

import argparse
import math
import statistics
from collections.abc import Sequence

from vllm_balance.core.policies import NO_LIMITS, LatencyLimits

from ..errors import UsageError
from .arguments import real
from .options import add_result_args, add_scenario_args, policies_from
from .policies import server_options
from .results import WORTHWHILE, PolicyResult, unsteady
from .simulate import compare_from

LATENCY, TOKENS, TTFT = (
    "steady_mean_e2el_ms",
    "compared_throughput",
    "steady_p99_ttft_ms",
)
"""The figures on which the advice is based."""


def advise(
    results: Sequence[PolicyResult],
    ttft_budget_ms: float | None,
    limits: LatencyLimits = NO_LIMITS,
) -> str:
    """Which policy to choose, and why, in one sentence.

    The policy with the lowest mean latency: in a closed loop it falls as throughput
    rises (Little's law), and in an open one, where throughput is given, it weighs a
    later start against faster tokens. The first and the last turn of a closed loop do
    not count. A policy with fewer tokens per second is excluded, because in a longer
    run its requests would end later. One of the results must be of "off".
    """
    if reason := unsteady(results):
        return f"No advice, because {reason}"
    off = next(result for result in results if result.policy == "off")
    budget = math.inf if ttft_budget_ms is None else ttft_budget_ms
    in_time = [r for r in results if r is not off and r.figure(TTFT) <= budget]
    if not in_time:
        return (
            f"Leave it off: every policy exceeds the TTFT budget of {budget:g} ms at "
            f"the 99th percentile (off: {off.figure(TTFT):.0f} ms)."
        )
    lasting = [r for r in in_time if (r.gain(TOKENS, off) or 0) > _least_gain(off)]
    if not lasting:
        return "Leave it off: with every policy there are fewer output tok/s."
    best = min(lasting, key=lambda result: result.figure(LATENCY))
    gain, margin = _earlier(best, off)
    if gain < WORTHWHILE or gain < margin:
        later_or_earlier = "later" if gain < 0 else "earlier"
        reason = ", which is too little to matter" * (gain >= 0)
        return (
            f"Leave it off: with the best policy, {best.policy}, requests end "
            f"{abs(gain):.1%} {later_or_earlier} on average (±{margin:.1%} between "
            f"seeds){reason}."
        )
    return _praise(best, off, limits)


def _least_gain(off: PolicyResult) -> float:
    """The allowed loss of tokens per second, as a gain; greater in short open loops."""
    end = 0.0 if off.runs[0].first_turn else 1 / off.figure("turns")
    return -max(WORTHWHILE, end)


def _earlier(best: PolicyResult, off: PolicyResult) -> tuple[float, float]:
    """By which share latency is lower, and half the range between seeds."""
    gains = [-gain for gain in best.gains(LATENCY, off)]
    return statistics.fmean(gains), (max(gains) - min(gains)) / 2


def _praise(best: PolicyResult, off: PolicyResult, limits: LatencyLimits) -> str:
    gain, margin = _earlier(best, off)
    tokens_gain = best.gain(TOKENS, off) or 0
    is_closed = bool(off.runs[0].first_turn)
    counted = "; first and last requests not counted" * is_closed
    tokens = f"{'steady' if is_closed else 'output'} tok/s"  # as a column is called
    rate = "" if abs(tokens_gain) < WORTHWHILE else f", {tokens} {tokens_gain:+.0%}"
    tpot_off, tpot_best = (result.mean("mean_tpot_ms") for result in (off, best))
    has_none = tpot_off is None or tpot_best is None
    tpot = "" if has_none else f", TPOT {tpot_off:.0f} → {tpot_best:.0f} ms"
    ttft = [result.figure("median_ttft_ms") / 1e3 for result in (off, best)]
    within = ""
    if any(limits):
        was_kept, is_kept = (result.figure("attainment") for result in (off, best))
        within = f", {was_kept:.0%} → {is_kept:.0%} within the limits"
    options = " ".join(server_options(best.policy, limits))
    return (
        f"Use {options}: requests end {gain:.0%} earlier "
        f"on average (±{margin:.0%} between seeds{counted}){rate}{tpot}, median TTFT "
        f"{ttft[0]:.2f} → {ttft[1]:.2f} s{within}."
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `recommend`."""
    parser.add_argument(
        "--ttft-budget-ms",
        type=real(0, 1e9, above=True),
        help="What the 99th percentile of the time to first token must not exceed.",
    )
    add_scenario_args(parser)
    parser.set_defaults(num_seeds=3)
    add_result_args(parser)


def run(args: argparse.Namespace) -> None:
    """Compares the policies, prints the table and the advice."""
    policies = policies_from(args)
    for policy in policies:
        server_options(policy)
    if set(policies) == {"off"}:
        raise UsageError("--policy off: name a policy to compare it with.")
    if args.role == "decode":  # where nothing is held: they differ by the dispatch
        policies = [name for name in policies if name == "adaptive"] or policies[:1]
    comparison = compare_from(args, list(dict.fromkeys(["off", *policies])))
    limits = comparison.scenario.latency_limits
    advice = advise(comparison.results, args.ttft_budget_ms, limits)
    comparison.show()
    print(f"\n{advice}")
    comparison.save(args, "recommend", advice=advice)
