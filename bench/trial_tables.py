"""The rows of the tables of trials, in docs/results.md: real servers, measured."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]
Rows = list[list[str]]

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


def _figures(report: Report) -> Mapping[str, str]:
    ratios = next(p["ratios"] for p in report["policies"].values() if "ratios" in p)
    if "computed_share" in ratios:
        return SESSIONS
    return A_TRACE if "--replay" in report["command"] else ALL_SLOTS


def titles(report: Report) -> list[str]:
    """Heads of the columns of `ratios`."""
    return list(_figures(report).values())


def ratios(reports: Sequence[Report], names: Iterable[str] = ()) -> Rows:
    """Ratios to off, measured with the range of the turns (and predicted).

    Args:
        reports: each has a column per figure.
        names: of the policies; all but the base without any.
    """
    rows = []
    for policy in names or list(reports[0]["policies"])[1:]:
        rows.append([policy])
        for report in reports:
            found = report["policies"][policy]
            for figure in _figures(report):
                measured = found["ratios"][figure]
                cell = f"{measured['mean']:.2f}"
                if measured["rounds"] > 1:
                    cell += f" ({measured['low']:.2f}–{measured['high']:.2f})"
                predicted = report["forecast"]
                if not isinstance(predicted, str) and figure in predicted[policy]:
                    cell += f", {predicted[policy][figure]:.2f}"
                rows[-1].append(cell)
    return rows


def turns(report: Report) -> int:
    """Of each policy."""
    return len(report["policies"]["off"]["runs"]["mean_e2el_ms"])


def host_ms(report: Report) -> float | None:
    """Between two steps; None if the logs do not tell."""
    fit = report["fit"]
    return None if isinstance(fit, str) else 1e3 * fit["host_seconds"]
