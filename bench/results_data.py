# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The rows of the tables in docs/results.md; the text is in templates/results.md.jinja.

A case is what `suite.py` keeps of one scenario: the scenario, and by policy the mean
and spread of each figure, the gains over off, and where the time went.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

ORACLE = "perfect sharing"
GAIN = "steady_output_throughput"
PARTS = ("step", "decodes", "prefill", "prefill steps", "imbalance")
"""What the time of an output token goes into."""

Case = Mapping[str, Any]
Cases = Mapping[str, Case]
Document = Mapping[str, Any]
Rows = list[list[str]]


def published(document: Document) -> Rows:
    """The published figures beside the simulated ones."""
    (case,) = document["cases"].values()
    rows = []
    for policy, figures in document["published"].items():
        found = case["policies"][policy]
        for name, title in (
            ("output_throughput", "output tok/s"),
            ("mean_tpot_ms", "TPOT ms"),
        ):
            mean, spread = found["mean"][name], found["spread"][name]
            rows.append(
                [
                    f"{policy}, {title}",
                    f"{figures[name]:g}",
                    f"{mean:.4g} ± {spread / 2:.2g}",
                    f"{mean / figures[name] - 1:+.1%}",
                ]
            )
    return rows


def whole_gain(document: Document) -> tuple[float, float]:
    """Gain of `cap` in the throughput of the whole run: published, and simulated."""
    (case,) = document["cases"].values()
    name, told = "output_throughput", document["published"]
    found = (
        case["policies"]["cap"]["mean"][name] / case["policies"]["off"]["mean"][name]
    )
    return told["cap"][name] / told["off"][name] - 1, found - 1


def policies(document: Document, *left_out: str) -> list[str]:
    """Names of the policies that were compared, without some."""
    first = next(iter(document["cases"].values()))
    return [name for name in first["policies"] if name not in left_out]


def by_case(
    document: Document, names: Iterable[str], cell: Callable[[Case], str]
) -> Rows:
    """A row per scenario and a column per policy."""
    names = list(names)
    return [
        [title, *(cell(case["policies"][name]) for name in names)]
        for title, case in document["cases"].items()
    ]


def gains(document: Document, digits: int = 0) -> Rows:
    """Gain in steady throughput over off."""
    return by_case(
        document,
        policies(document, "off"),
        lambda found: f"{found['gain'][GAIN]:+.{digits}%}",
    )


def end_to_end(document: Document) -> Rows:
    """Change of the mean end-to-end latency over off."""
    return by_case(
        document,
        policies(document, "off", ORACLE),
        lambda found: f"{found['gain']['mean_e2el_ms']:+.0%}",
    )


def latencies(document: Document) -> Rows:
    """TTFT p50 s, TTFT p99 s and ITL p99 ms."""

    def cell(found: Case) -> str:
        mean = found["mean"]
        return (
            f"{mean['median_ttft_ms'] / 1e3:.1f} / {mean['p99_ttft_ms'] / 1e3:.0f} / "
            f"{mean['p99_itl_ms']:.0f}"
        )

    return by_case(document, policies(document, ORACLE), cell)


def bounds(document: Document) -> Rows:
    """Throughput as a share of the physical bound, and of the oracle."""
    rows = []
    for title, case in document["cases"].items():
        found = case["policies"]
        oracle = found[ORACLE]["mean"]["output_throughput"]
        rows.append([title])
        for name in policies(document, ORACLE):
            mean = found[name]["mean"]
            share = mean["output_throughput"] / oracle
            rows[-1].append(f"{mean['bound_share']:.0%} / {share:.0%}")
    return rows


def widest_gain(document: Document) -> float:
    """The greatest difference of a gain between seeds, as a share."""
    spreads = [
        found["gain_spread"][GAIN]
        for case in document["cases"].values()
        for found in case["policies"].values()
    ]
    return float(max(spreads))


def _by_policy(
    document: Document, cells: Callable[[Mapping[str, Any]], list[str]]
) -> Rows:
    return [
        [f"{title}, {policy}", *cells(found)]
        for title, case in document["cases"].items()
        for policy, found in case["policies"].items()
    ]


def full_cache(document: Document) -> Rows:
    """Gain and latencies where the KV cache is full."""

    def cells(found: Mapping[str, Any]) -> list[str]:
        mean = found["mean"]
        return [
            f"{found['gain'][GAIN]:+.1%} ± {found['gain_spread'][GAIN] / 2:.1%}",
            f"{mean['mean_tpot_ms']:.0f}",
            f"{mean['median_ttft_ms'] / 1e3:.1f}",
            f"{mean['p99_ttft_ms'] / 1e3:.0f}",
            f"{mean['p99_itl_ms']:.0f}",
            f"{mean['mean_e2el_ms'] / 1e3:.0f}",
        ]

    return _by_policy(document, cells)


def time_spent(document: Document) -> Rows:
    """Milliseconds per output token by `PARTS`, and their sum."""

    def cells(found: Mapping[str, Any]) -> list[str]:
        spent = found["ms_per_token"]
        values = (*(spent[part] for part in PARTS), sum(spent.values()))
        return [f"{value:.3f}" for value in values]

    return _by_policy(document, cells)


def speed(document: Document) -> Rows:
    """Steps and rank-steps per second of the simulator."""
    return [
        [f"{ranks} ranks, {policy}", f"{rate:,.0f}", f"{rate * int(ranks):,.0f}"]
        for ranks, rates in document["steps_per_second"].items()
        for policy, rate in rates.items()
    ]


def trace_speed(document: Document) -> Rows:
    """Requests and steps per second of the simulator on whole slices of traces."""
    return [
        [
            f"{name}, {found['requests']:,} requests",
            f"{found['requests_per_second']:,.0f}",
            f"{found['steps_per_second']:,.0f}",
        ]
        for name, found in document["traces"].items()
    ]


WALL_CLOCK = {
    True: {GAIN: "throughput", "mean_tpot_ms": "TPOT", "mean_e2el_ms": "e2e"},
    False: {
        "mean_e2el_ms": "e2e",
        "median_ttft_ms": "TTFT p50",
        "p99_ttft_ms": "TTFT p99",
        "mean_tpot_ms": "TPOT",
    },
}
"""Figures and their titles, by whether all slots are in use."""


def wall_clock(document: Document) -> Rows:
    """Measured and predicted ratios to off, and the difference in points."""
    measured = document["measured"]
    predictions = document["simulated"], document["simulated_with_own_host_time"]

    def ratio(found: Case, policy: str, figure: str) -> float:
        value: float = found[policy]["mean"][figure] / found["off"]["mean"][figure]
        return value

    rows = []
    for policy in measured:
        if policy == "off":
            continue
        for figure, title in WALL_CLOCK[document["rate"] is None].items():
            wall = ratio(measured, policy, figure)
            off = measured["off"]["mean"][figure]
            spread = measured[policy]["spread"][figure] / off / 2
            rows.append([f"{policy}, {title}", f"{wall:.2f} ± {spread:.2f}"])
            for found in predictions:
                predicted = ratio(found, policy, figure)
                points = (predicted - wall) * 100
                rows[-1].append(f"{predicted:.2f} ({points:+.0f})")
    return rows


def front_ends(document: Document) -> Rows:
    """Ratios to `adaptive` with one API server, and the worst ones."""
    return [
        [row["policy"], str(row["servers"])]
        + [
            f"{row[name]['mean']:.2f} ({row[name]['worst']:.2f})"
            for name in ("mean_e2el", "p99_ttft")
        ]
        for row in document["rows"]
    ]


def host_time(document: Document) -> dict[str, float]:
    """By policy, milliseconds that a server lost between steps on average."""
    return {
        policy: 1e3 * statistics.fmean(found["host_seconds"] for found in fits)
        for policy, fits in document["calibration"].items()
    }


def ranks(document: Document) -> list[int]:
    """Numbers of ranks for which a cost was measured."""
    return sorted({row["ranks"] for row in document["results"]})


def rank_titles(document: Document) -> list[str]:
    """Heads of the columns for them."""
    return [f"{count} ranks" for count in ranks(document)]


def costs(document: Document, kind: str) -> Rows:
    """Median µs, and the share of a step where it is known.

    Args:
        document: of a benchmark of a single cost.
        kind: what has a row each: "policy" or "way".
    """
    found = {(row[kind], row["ranks"]): row for row in document["results"]}
    return [
        [name, *(_microseconds(found[name, count]) for count in ranks(document))]
        for name in dict.fromkeys(row[kind] for row in document["results"])
    ]


def _microseconds(row: Mapping[str, Any]) -> str:
    median = row["median_us"]
    text = f"{median:.0f}" if median >= 10 else f"{median}"
    share = row.get("share_of_a_36_ms_step")
    return text if share is None else f"{text} ({share:.1%})"


def hops(document: Document) -> Rows:
    """Messages in a row of each way to exchange rows, and processor time per rank."""
    found = {(row["way"], row["ranks"]): row for row in document["results"]}
    return [
        [
            way,
            *(
                f"{row['hops']:.0f} ({row['processor_us_per_rank'] / 1000:.1f} ms)"
                for row in (found[way, count] for count in ranks(document))
            ),
        ]
        for way in dict.fromkeys(row["way"] for row in document["results"])
    ]


def saved_by_early_start(document: Document) -> dict[int, float]:
    """By ranks, the share of the time that an early start of the gather saves."""
    found = {(row["way"], row["ranks"]): row for row in document["results"]}
    early, late = list(dict.fromkeys(row["way"] for row in document["results"]))[-2:]
    return {
        count: 1 - found[early, count]["median_us"] / found[late, count]["median_us"]
        for count in ranks(document)
    }


def measuring(document: Document) -> Rows:
    """A row for each state that was measured."""
    return [
        [
            row["state"],
            str(row["pending"]),
            *(f"{row[key]:.0f}" for key in ("median_us", "p10_us", "p90_us")),
        ]
        for row in document["results"]
    ]


def over_goal(document: Document) -> str:
    """Says which states took longer than the goal."""
    over = [
        f'"{row["state"]}"'
        for row in document["results"]
        if row["median_us"] > row["goal_us"]
    ]
    return f"Missed with {', '.join(over)}." if over else "Met in all states."
