"""The rows of the tables of what was measured, in docs/results.md."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]
Rows = list[list[str]]

# ---- Real servers on the emulated device

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


def _figures(document: Document) -> Mapping[str, str]:
    if "computed_share" in document["measured"]["off"]["mean"]:
        return SESSIONS
    return ALL_SLOTS if document["rate"] is None else A_TRACE


def titles(document: Document) -> list[str]:
    """Heads of the columns of `servers`."""
    return list(_figures(document).values())


def servers(documents: Sequence[Document], names: Iterable[str] = ()) -> Rows:
    """Ratios to off, measured ± half the range of the repeats (and predicted).

    Args:
        documents: of `wall_clock.py`; each has a column per figure.
        names: of the policies; all but off without any.
    """
    rows = []
    for policy in names or [name for name in documents[0]["measured"] if name != "off"]:
        rows.append([policy])
        for found in documents:
            for figure in _figures(found):
                off = found["measured"]["off"]["mean"][figure]
                half = found["measured"][policy]["spread"][figure] / off / 2
                wall, predicted = (
                    found[how][policy]["mean"][figure]
                    / found[how]["off"]["mean"][figure]
                    for how in ("measured", "simulated")
                )
                spread = f" ± {half:.2f}" if found["repeats"] > 1 else ""
                rows[-1].append(f"{wall:.2f}{spread} ({predicted:.2f})")
    return rows


# ---- Costs


def decisions(document: Document) -> Rows:
    """Median µs by ranks; a row for each policy."""
    rows: dict[str, list[str]] = {}
    for row in document["results"]:
        name, median = row["policy"], row["median_us"]
        shown = f"{median:.0f}" if median >= 10 else f"{median}"
        rows.setdefault(name, [name]).append(shown)
    return list(rows.values())


def dispatches(document: Document) -> Rows:
    """Of the dispatch: median µs of vLLM's and ours, tenths, and the difference."""
    rows = []
    for row in document["results"]:
        own = [f"{row[name]:.1f}" for name in ("median_us", "p10_us", "p90_us")]
        theirs, more = row.get("upstream_us"), row.get("share")
        rows.append(
            [
                *(row["of"], "" if theirs is None else f"{theirs:.1f}", *own),
                "" if more is None else f"{more:.1%}",
            ]
        )
    return rows


def rank_titles(document: Document) -> list[str]:
    """Heads of the columns for `decisions`."""
    counts = dict.fromkeys(row["ranks"] for row in document["results"])
    return [f"{count} ranks" for count in counts]
