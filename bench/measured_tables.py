"""The rows of the tables in docs/results.md that are measured: trials, a run, costs."""

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]
Rows = list[list[str]]

# ---- Trials

ALL_SLOTS = {
    "steady_output_throughput": "throughput",
    "mean_tpot_ms": "TPOT",
    "mean_e2el_ms": "e2e",
}
A_TRACE = {
    "mean_e2el_ms": "e2e",
    "median_ttft_ms": "TTFT p50",
    "p99_ttft_ms": "TTFT p99",
    "mean_tpot_ms": "TPOT",
}
SESSIONS = {"computed_share": "computed", **A_TRACE}
"""Figures and their titles."""
TRIALS = {
    "trial_slots": "All slots: {requests} requests have about 400 prompt and 60 output "
    "tokens, and as many are in flight as the four ranks have slots.",
    "trial_trace": "A trace: {requests} consecutive requests of Azure conv keep their "
    "intervals and are a quarter as long as they were, because the emulated device is "
    "slow. They are sent at 90 % of what `off` serves in simulation.",
    "trial_sessions": "Agents: {requests} requests of sixteen clients that play "
    "sessions, with prefix caching: lengths are a sixteenth and think times an eighth "
    "of what they were. *Computed* is the share of the prompt tokens that was in no KV "
    "cache.",
    "trial_decode": "A decode instance: {requests} requests of Mooncake in a row are "
    "an eighth as long as they were, and are sent at two thirds of what is served with "
    "all slots in use. They arrive with their KV cache; what 24 of them hold takes "
    "half of a step. `off` chooses ranks by vLLM's counts, `adaptive` by context.",
}
"""By the name of a result, what was sent."""


def trial_figures(report: Document) -> Mapping[str, str]:
    """The figures that are shown of a trial, with their titles."""
    ratios = next(p["ratios"] for p in report["policies"].values() if "ratios" in p)
    if "computed_share" in ratios:
        return SESSIONS
    return A_TRACE if "--replay" in report["command"] else ALL_SLOTS


def trial_ratios(report: Document) -> Rows:
    """Ratios to off by policy, with the range of the turns (and predicted)."""
    rows = []
    for policy, found in list(report["policies"].items())[1:]:
        rows.append([policy])
        for figure in trial_figures(report):
            measured, predicted = found["ratios"][figure], report["forecast"]
            cell = f"{measured['mean']:.2f}"
            if measured["rounds"] > 1:
                cell += f" ({measured['low']:.2f}–{measured['high']:.2f})"
            if not isinstance(predicted, str) and figure in predicted[policy]:
                cell += f", {predicted[policy][figure]:.2f}"
            rows[-1].append(cell)
    return rows


def trial_sentence(name: str, report: Document) -> str:
    """What was sent in a trial, how often, and on what."""
    turns = len(report["policies"]["off"]["runs"]["mean_e2el_ms"])
    hosts = report["host_seconds"].items()
    host = ", ".join(f"{1e3 * s:.1f} ms with `{policy}`" for policy, s in hosts)
    lost = f"; between two steps the host took {host}" if host else ""
    return (
        f"{TRIALS[name].format(requests=report['requests'])} {turns} turns of each "
        f"policy on a machine with {report['cores']} cores, which servers and clients "
        f"shared{lost}."
    )


# ---- The real run

ERRORS = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")


def real_run(document: Document) -> Rows:
    """Errors in per cent by what was fitted to."""
    rows = []
    for case in document["cases"]:
        rows.append([f"fitted to {case['title']}, {case['fit']['steps']} steps"])
        for name in ERRORS:
            errors = (f"{100 * found[name]:+.1f}" for found in case["errors"])
            rows[-1].append(" / ".join(errors))
    return [*rows, ["our target", "±3", "±8", "±3", "±3"]]


# ---- Costs


def decisions(document: Document) -> Rows:
    """Median µs by ranks; a row for each policy."""
    rows: dict[str, list[str]] = {}
    for row in document["results"]:
        name, median = row["policy"], row["median_us"]
        shown = f"{median:.0f}" if median >= 10 else f"{median}"
        rows.setdefault(name, [name]).append(shown)
    return list(rows.values())


def measurings(document: Document) -> Rows:
    """By state the median and the ninth tenth, in µs."""
    return [
        [row["state"], f"{row['median_us']:.0f}", f"{row['p90_us']:.0f}"]
        for row in document["results"]
    ]


def dispatches(document: Document) -> Rows:
    """Of the dispatch: median µs of vLLM's and ours, and the ninth tenth."""
    return [
        [
            row["of"],
            f"{row['upstream_us']:.1f}" if "upstream_us" in row else "",
            *(f"{row[name]:.1f}" for name in ("median_us", "p90_us")),
        ]
        for row in document["results"]
    ]
