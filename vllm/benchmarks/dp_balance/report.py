# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`report`: one page with the table, the frontier and the ranks' timelines."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from . import chart, timeline
from .errors import UsageError
from .options import (
    add_policy_arg,
    add_progress_arg,
    add_scenario_args,
    policies_from,
    scenarios_from,
    seeds_from,
    token_counter_from,
)
from .page import LINE_COLOURS, STATE_COLOURS, render
from .policies import OWN
from .results import PolicyResult, table_rows
from .scenario import Scenario
from .simulate import compare

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
        scenarios_from(args)[-1],
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
    as_asked = by_level[1.0]
    head, *rows = table_rows(as_asked)
    text = render(
        "report.html.jinja",
        scenario=scenario,
        head=head,
        rows=rows,
        levels=LEVELS,
        lines=[(f"line{n}", result.policy) for n, result in enumerate(as_asked)],
        charts=draw_frontier(by_level),
        states=list(timeline.STATES.items()),
        max_ranks=timeline.MAX_RANKS,
        seconds=args.timeline_seconds,
        timelines=draw_timelines(scenario, as_asked, seeds[0], args.timeline_seconds),
        line_colours=LINE_COLOURS,
        state_colours=STATE_COLOURS,
    )
    try:
        args.output.write_text(text, encoding="utf-8")
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


def draw_frontier(by_level: Mapping[float, Sequence[PolicyResult]]) -> list[Markup]:
    """Draws TPOT and TTFT over throughput, a line per policy through the loads."""

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

    x_title = "output tokens per second"
    tpot = chart.draw("TPOT", x_title, "mean TPOT, ms", lines("mean_tpot_ms", 1))
    ttft = chart.draw("TTFT", x_title, "median TTFT, s", lines("median_ttft_ms", 1e3))
    return [Markup(tpot), Markup(ttft)]


class Timeline(NamedTuple):
    """What the ranks do under one policy, in a stretch of its run."""

    policy: str
    start: float
    """Virtual seconds."""
    steps: int
    svg: Markup


def draw_timelines(
    scenario: Scenario, results: Sequence[PolicyResult], seed: int, seconds: float
) -> list[Timeline]:
    """Draws so many seconds from the middle of each policy's run."""
    drawn = []
    for result in results:
        start = max(0.0, result.runs[0].steady_duration / 2 - seconds / 2)
        steps = timeline.record(scenario, result.policy, seed, start, seconds)
        svg = timeline.draw(steps, start, seconds, scenario.cost)
        drawn.append(Timeline(result.policy, start, len(steps), Markup(svg)))
    return drawn
