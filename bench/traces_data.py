"""What the page says about the runs on traces: `bench/results/traces.json`."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

Document = dict[str, Any]
Cell = dict[str, Any]

BEHIND = 0.02
"""A cell counts as lost if the best baseline is better by more than this share."""
GOODPUT = 0.01
"""And goodput as lost if it is this much below that of off."""
TAIL = 1.1
"""Limit of TTFT p99 over that of align."""


def select(document: Document, **fields: object) -> list[Cell]:
    """The cells with these values."""
    return [
        cell
        for cell in document["cells"]
        if all(cell[name] == value for name, value in fields.items())
    ]


def distinct(document: Document, field: str) -> list[Any]:
    """The values of a field, in order."""
    return list(dict.fromkeys(cell[field] for cell in document["cells"]))


def policies(document: Document) -> list[str]:
    """The policies, `adaptive` first."""
    return list(document["cells"][0]["policies"])


def load_name(load: float | None) -> str:
    """A load in words."""
    return "120 % of adaptive's" if load is None else f"{load:.0%}".replace("%", " %")


def best(cell: Cell) -> str:
    """The baseline with the shortest mean end-to-end time."""
    found = cell["policies"]
    return min(found.keys() - {"adaptive"}, key=lambda name: found[name]["mean_e2el"])


def lead(cell: Cell) -> float:
    """How much longer adaptive's mean end-to-end time is than the best baseline's."""
    found = cell["policies"]
    return found["adaptive"]["mean_e2el"] / found[best(cell)]["mean_e2el"] - 1


def goodput_lead(cell: Cell) -> float:
    """Goodput of adaptive less that of off, as a share."""
    found = cell["policies"]
    return found["adaptive"]["goodput"] - found["off"]["goodput"]


def tail_ratio(cell: Cell) -> float:
    """TTFT p99 of adaptive over that of align."""
    found = cell["policies"]
    return found["adaptive"]["p99_ttft"] / found["align"]["p99_ttft"]


def mean_lead(cells: Sequence[Cell]) -> float:
    """Geometric mean of the leads."""
    return math.exp(statistics.fmean(math.log1p(lead(cell)) for cell in cells)) - 1


def end_to_end(document: Document, cost: str) -> list[list[str]]:
    """Mean end-to-end time (s), a mean of the windows; a row per trace and load."""
    rows = []
    for trace in distinct(document, "trace"):
        for load in distinct(document, "load"):
            cells = select(document, trace=trace, cost=cost, load=load)
            if cells:
                rows.append(
                    [f"{trace}, {load_name(load)}"]
                    + [
                        f"{_mean(cells, name, 'mean_e2el'):.1f}"
                        for name in policies(document)
                    ]
                )
    return rows


def felt(document: Document, cost: str, names: Sequence[str]) -> list[list[str]]:
    """TTFT p50 and p99 (s), TPOT (ms) and goodput (%) of each policy."""
    rows = []
    for trace in distinct(document, "trace"):
        for load in distinct(document, "load"):
            cells = select(document, trace=trace, cost=cost, load=load)
            if cells:
                rows.append(
                    [f"{trace}, {load_name(load)}"]
                    + [
                        f"{_mean(cells, name, 'median_ttft'):.1f} / "
                        f"{_mean(cells, name, 'p99_ttft'):.0f} / "
                        f"{_mean(cells, name, 'mean_tpot_ms'):.0f} / "
                        f"{100 * _mean(cells, name, 'goodput'):.0f}"
                        for name in names
                    ]
                )
    return rows


def leads(document: Document) -> list[list[str]]:
    """By trace and form of the cost: mean lead, worst cell, cells that are lost."""
    rows = []
    for trace in distinct(document, "trace"):
        row = [trace]
        for cost in distinct(document, "cost"):
            cells = select(document, trace=trace, cost=cost)
            row.append(
                f"{100 * mean_lead(cells):+.1f} ({100 * max(map(lead, cells)):+.1f}) %"
                if cells
                else ""
            )
        rows.append(row)
    return rows


def lost(document: Document) -> list[list[str]]:
    """The cells in which a baseline is more than `BEHIND` better, worst first."""
    cells = sorted(
        (cell for cell in document["cells"] if lead(cell) > BEHIND),
        key=lead,
        reverse=True,
    )
    return [
        [
            f"{cell['trace']} from {cell['first']}, {cell['cost']}, "
            f"{load_name(cell['load'])}",
            f"{100 * lead(cell):+.1f} %",
            best(cell),
        ]
        for cell in cells
    ]


def share(document: Document, met: str) -> str:
    """In how many cells a target is met: `mean`, `goodput` or `tail`."""
    test = {
        "mean": lambda cell: lead(cell) <= BEHIND,
        "goodput": lambda cell: goodput_lead(cell) >= -GOODPUT,
        "tail": lambda cell: tail_ratio(cell) <= TAIL,
    }[met]
    cells = document["cells"]
    return f"{sum(map(test, cells))} of {len(cells)}"


def _mean(cells: Sequence[Cell], policy: str, figure: str) -> float:
    return statistics.fmean(cell["policies"][policy][figure] for cell in cells)
