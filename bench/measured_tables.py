"""The rows of the tables of what was measured and counted, in docs/results.md."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]
Rows = list[list[str]]

# ---- Real servers on the emulated device

WALL_CLOCK = {
    True: {
        "steady_output_throughput": "throughput",
        "mean_tpot_ms": "TPOT",
        "mean_e2el_ms": "e2e",
    },
    False: {
        "mean_e2el_ms": "e2e",
        "median_ttft_ms": "TTFT p50",
        "p99_ttft_ms": "TTFT p99",
        "mean_tpot_ms": "TPOT",
    },
}
"""Figures and their titles, by whether all slots are in use."""


def titles(document: Document) -> list[str]:
    """Heads of the columns of `servers`."""
    return list(WALL_CLOCK[document["rate"] is None].values())


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
            for figure in WALL_CLOCK[found["rate"] is None]:
                off = found["measured"]["off"]["mean"][figure]
                half = found["measured"][policy]["spread"][figure] / off / 2
                wall, predicted = (
                    found[how][policy]["mean"][figure]
                    / found[how]["off"]["mean"][figure]
                    for how in ("measured", "simulated")
                )
                rows[-1].append(f"{wall:.2f} ± {half:.2f} ({predicted:.2f})")
    return rows


# ---- Costs, and what was counted on emulated NPUs


def costs(document: Document, kind: str) -> Rows:
    """Median µs by ranks, and the share of a step where it is known.

    Args:
        document: of a part of `costs.py`.
        kind: what has a row each: "policy" or "way".
    """
    rows: dict[str, list[str]] = {}
    for row in document["results"]:
        rows.setdefault(row[kind], [row[kind]]).append(_microseconds(row))
    return list(rows.values())


def _microseconds(row: Mapping[str, Any]) -> str:
    median = row["median_us"]
    text = f"{median:.0f}" if median >= 10 else f"{median}"
    share = row.get("share_of_a_36_ms_step")
    return text if share is None else f"{text} ({share:.1%})"


def rank_titles(document: Document) -> list[str]:
    """Heads of the columns for `costs`."""
    counts = dict.fromkeys(row["ranks"] for row in document["results"])
    return [f"{count} ranks" for count in counts]


def shares(document: Document) -> Rows:
    """For each way to communicate, phi of what is counted.

    With N ranks, one rank's prompt costs 1 - phi (N - 1) / N of one on each rank.
    """
    rows, ranks = [], document["ranks"]
    for mode, steps in document["modes"].items():
        alone, together = one_and_all(steps)
        rows.append([mode, f"{max(alone['loads'])}"])
        for name in ("padded", "rows", "sent"):
            base, one, each = (max(step[name]) for step in (steps[0], alone, together))
            phi = (1 - (one - base) / (each - base)) * ranks / (ranks - 1)
            rows[-1].append(f"{phi:.2f}")
    return rows


def one_and_all(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The steps of the longest prompt that one rank, and that all ranks have computed.

    Raises:
        ValueError: there is none that both have.
    """
    least = min(min(step["loads"]) for step in steps)
    found = {tuple(step["loads"]): step for step in steps}
    for most in sorted({max(loads) for loads in found}, reverse=True):
        ranks = len(steps[0]["loads"])
        every = (most,) * ranks
        alone = [x for x in found if sorted(x) == [*[least] * (ranks - 1), most]]
        if alone and most > least and every in found:
            return [found[alone[0]], found[every]]
    raise ValueError("no prompt was computed both by one rank and by all at once")
