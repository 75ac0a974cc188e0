# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`report`: one page with the table, the frontier and the ranks' timelines."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from . import chart, timeline
from .compare import compare
from .errors import UsageError
from .options import (
    add_policy_arg,
    add_progress_arg,
    add_scenario_args,
    policies_from,
    scenario_from,
    seeds_from,
    token_counter_from,
)
from .page import Section, page
from .policies import OWN
from .results import PolicyResult, table_rows
from .scenario import Scenario

LEVELS = (0.25, 0.5, 0.75, 1.0, 1.5)
"""Loads of the frontier, as shares of the scenario's."""


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `report`."""
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("dp-balance-report.html"),
        help="The page to write. Default: %(default)s.",
    )
    parser.add_argument(
        "--timeline-seconds",
        type=float,
        default=8.0,
        help="Length of the timelines, from the middle of the time in which requests "
        "are sent. Default: "
        "%(default)s.",
    )
    add_policy_arg(parser, OWN)
    add_scenario_args(parser)
    add_progress_arg(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the scenario at several loads and writes the page."""
    if not args.timeline_seconds > 0:
        raise UsageError(
            f"--timeline-seconds {args.timeline_seconds}: give a number above 0."
        )
    if not args.output.parent.is_dir():
        raise UsageError(f"--output {args.output}: its folder does not exist.")
    policies, seeds, scenario = (
        policies_from(args),
        seeds_from(args),
        scenario_from(args),
    )
    by_level = {
        level: compare(
            at_level(scenario, level),
            policies,
            seeds,
            count_tokens=token_counter_from(args),
            disable_tqdm=args.disable_tqdm,
        )
        for level in LEVELS
    }
    sections = [
        _table(by_level[1.0]),
        _frontier(scenario, by_level),
        _timelines(scenario, by_level[1.0], seeds[0], args.timeline_seconds),
    ]
    try:
        args.output.write_text(
            page("Data parallel balance scheduling", _describe(scenario), sections),
            encoding="utf-8",
        )
    except OSError as error:
        raise UsageError(
            f"--output {args.output}: cannot be written ({error.strerror})."
        ) from None
    print(f"Wrote {args.output}")


def at_level(scenario: Scenario, level: float) -> Scenario:
    """The scenario with so many times its load."""
    traffic = scenario.traffic
    if traffic.max_concurrency is not None:
        concurrency = max(1, round(traffic.max_concurrency * level))
        traffic = replace(traffic, max_concurrency=concurrency)
    return replace(
        scenario,
        traffic=replace(traffic, request_rate=traffic.request_rate * level),
    )


def _describe(scenario: Scenario) -> str:
    limits, cost, load = scenario.limits, scenario.cost, scenario.workload
    lengths = (
        f"lengths of {load.trace}"
        if load.trace
        else f"{load.input_len} input and {load.output_len} output tokens"
    )
    traffic = scenario.traffic
    sent = f"{traffic.request_rate:g} requests/s" if not traffic.is_closed_loop else ""
    if traffic.is_closed_loop:
        sent = f"at most {traffic.max_concurrency} requests in flight"
    return (
        f"{limits.ranks} ranks of at most {limits.max_num_seqs} requests and "
        f"{limits.max_num_batched_tokens} tokens per step; {lengths}; {sent}; load "
        f"balancer {scenario.load_balancer}. Simulated in virtual time: a step takes "
        f"{cost.t0 * 1e3:.3g} ms + {cost.a * 1e6:.3g} µs per decode + "
        f"{cost.b * 1e6:.3g} µs per prompt token of the slowest rank + "
        f"{cost.c * 1e3:.3g} ms if any rank prefills (phi {cost.phi:g})."
    )


def _table(results: Sequence[PolicyResult]) -> Section:
    head, *rows = table_rows(results)
    cells = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return Section(
        "Policies",
        "Gain: output tokens per second over off, until the last request was sent.",
        f'<div class="scroll"><table><thead><tr>{cells}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>",
    )


def _frontier(scenario: Scenario, by_level: dict[float, list[PolicyResult]]) -> Section:
    def lines(figure: str, unit: float) -> dict[str, list[chart.Point]]:
        points: dict[str, list[chart.Point]] = {}
        for level, results in by_level.items():
            for result in results:
                x = result.mean("steady_output_throughput")
                if math.isnan(x):  # all requests were sent at once
                    x = result.mean("output_throughput")
                y = result.mean(figure) / unit
                name = f"{result.policy}, {level:.0%} load: {x:.0f} tok/s, {y:.4g}"
                points.setdefault(result.policy, []).append((x, y, name))
        return points

    throughput = "output tokens per second"
    charts = [
        chart.draw("TPOT", throughput, "mean TPOT, ms", lines("mean_tpot_ms", 1)),
        chart.draw("TTFT", throughput, "median TTFT, s", lines("median_ttft_ms", 1e3)),
    ]
    legend = "".join(
        f'<li><i class="line{number}"></i>{escape(result.policy)}</li>'
        for number, result in enumerate(by_level[1.0])
    )
    levels = ", ".join(f"{level:.0%}" for level in by_level)
    return Section(
        "Throughput and latency",
        f"Each line goes through loads of {levels} of the scenario's, and counts "
        "until the last request was sent; lower and further to the right is better.",
        f'<ul class="legend">{legend}</ul><div class="charts">{"".join(charts)}</div>',
    )


def _timelines(
    scenario: Scenario, results: Sequence[PolicyResult], seed: int, seconds: float
) -> Section:
    legend = "".join(
        f'<li><i class="{state}"></i>{escape(meaning)}</li>'
        for state, meaning in timeline.STATES.items()
    )
    drawings = []
    for result in results:
        start = max(0.0, result.runs[0].steady_duration / 2 - seconds / 2)
        steps = timeline.record(scenario, result.policy, seed, start, seconds)
        drawing = timeline.draw(steps, start, seconds, scenario.cost)
        drawings.append(
            f"<h3>{escape(result.policy)}</h3>"
            f"<p>{seconds:g} s from second {start:.0f}, {len(steps)} steps.</p>"
            f"{drawing}"
        )
    return Section(
        "What the ranks do",
        "All ranks step together; a step lasts as long as its slowest rank."
        + (
            f" The first {timeline.MAX_RANKS} ranks are shown."
            if scenario.limits.ranks > timeline.MAX_RANKS
            else ""
        ),
        f'<ul class="legend">{legend}</ul>{"".join(drawings)}',
    )
