"""What the page says about the runs on traces: `bench/results/traces.json`."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

Document = dict[str, Any]
Cell = dict[str, Any]

BEHIND = 0.02
"""A cell counts as lost if the best baseline is better by more than this share."""
GOODPUT = 0.01
"""And goodput as lost if it is this much below that of off."""
TAIL = 1.1
"""Limit of TTFT p99 over that of align."""
RANKS, SLOTS = 8, 32
"""Of the grid; the other cells are spot checks."""
COUNTED = "adaptive, vLLM's dispatch"
"""Not a baseline: shows which share the dispatch by prompt tokens has."""


def select(document: Document, **fields: object) -> list[Cell]:
    """The cells with these values."""
    return [
        cell
        for cell in document["cells"]
        if all(cell[name] == value for name, value in fields.items())
    ]


def in_grid(document: Document) -> Document:
    """Without the spot checks."""
    return {**document, "cells": select(document, ranks=RANKS, slots=SLOTS)}


def spot_checks(document: Document) -> Document:
    """The cells with another number of ranks or slots."""
    grid = in_grid(document)["cells"]
    return {
        **document,
        "cells": [cell for cell in document["cells"] if cell not in grid],
    }


def distinct(document: Document, field: str) -> list[Any]:
    """The values of a field, in order."""
    return list(dict.fromkeys(cell[field] for cell in document["cells"]))


def windows(document: Document, trace: str) -> list[int]:
    """The first request of each window of a trace."""
    cells = select(document, trace=trace)
    return list(dict.fromkeys(cell["first"] for cell in cells))


def policies(document: Document) -> list[str]:
    """The policies, `adaptive` first."""
    return list(document["cells"][0]["policies"])


def load_name(load: float | None) -> str:
    """A load in words."""
    return "120 % of adaptive's" if load is None else f"{load:.0%}".replace("%", " %")


def best(cell: Cell) -> str:
    """The baseline with the shortest mean end-to-end time."""
    found = cell["policies"]
    baselines = sorted(found.keys() - {"adaptive", COUNTED})
    return min(baselines, key=lambda name: found[name]["mean_e2el"])


def lead(cell: Cell, policy: str = "adaptive") -> float:
    """How much longer adaptive's mean end-to-end time is than the best baseline's."""
    found = cell["policies"]
    return found[policy]["mean_e2el"] / found[best(cell)]["mean_e2el"] - 1


def goodput_lead(cell: Cell) -> float:
    """Goodput of adaptive less that of off, as a share."""
    found = cell["policies"]
    return found["adaptive"]["goodput"] - found["off"]["goodput"]


def tail_ratio(cell: Cell) -> float:
    """TTFT p99 of adaptive over that of align."""
    found = cell["policies"]
    return found["adaptive"]["p99_ttft"] / found["align"]["p99_ttft"]


def mean_lead(cells: Sequence[Cell], policy: str = "adaptive") -> float:
    """Geometric mean of the leads."""
    logs = [math.log1p(lead(cell, policy)) for cell in cells]
    return math.exp(statistics.fmean(logs)) - 1


def mean_tail(cells: Sequence[Cell]) -> float:
    """Geometric mean of TTFT p99 over that of align."""
    return math.exp(statistics.fmean(math.log(tail_ratio(cell)) for cell in cells))


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
    """By trace and form of the cost: mean lead and worst cell.

    A second row per trace is with vLLM's dispatch, mean lead alone.
    """
    rows = []
    for trace in distinct(document, "trace"):
        row, counted = [trace], [f"{trace}, with vLLM's dispatch"]
        for cost in distinct(document, "cost"):
            cells = select(document, trace=trace, cost=cost)
            worst = 100 * max(map(lead, cells))
            row.append(f"{100 * mean_lead(cells):+.1f} ({worst:+.1f}) %")
            counted.append(f"{100 * mean_lead(cells, COUNTED):+.1f} %")
        rows += [row, counted]
    return rows


def capacity_ratios(document: Document, **fields: object) -> list[float]:
    """What `adaptive` serves with all slots in use over what `off` does, by window."""
    rates: dict[tuple[object, ...], dict[float | None, float]] = {}
    for cell in select(document, **fields):
        window = cell["trace"], cell["first"], cell["cost"]
        rates.setdefault(window, {})[cell["load"]] = cell["rate"]
    # Rates are 1.2 times that of adaptive, and shares of that of off.
    return [found[None] / 1.2 / (found[0.9] / 0.9) for found in rates.values()]


def capacities(document: Document) -> list[list[str]]:
    """The same by trace and form of the cost: the least and the greatest."""
    rows = []
    for trace in distinct(document, "trace"):
        row = [trace]
        for cost in distinct(document, "cost"):
            ratios = capacity_ratios(document, trace=trace, cost=cost)
            row.append(f"{min(ratios):.1f} to {max(ratios):.1f}")
        rows.append(row)
    return rows


def off_without_padding(document: Document, trace: str) -> float:
    """How much more `off` serves at phi 0.5 if nothing is padded, as a share."""
    bare, padded = (
        _mean_rate(select(document, trace=trace, cost=cost, load=0.9))
        for cost in ("phi 0.5", "phi 0.5, padded")
    )
    return bare / padded - 1


def _mean_rate(cells: Sequence[Cell]) -> float:
    return statistics.geometric_mean(cell["rate"] for cell in cells)


def shapes(document: Document) -> list[list[str]]:
    """By ranks and slots: mean lead, worst cell, cells in which each target is met."""
    rows = []
    for ranks, slots in dict.fromkeys(
        (cell["ranks"], cell["slots"]) for cell in document["cells"]
    ):
        part = {"cells": select(document, ranks=ranks, slots=slots)}
        leads = [lead(cell) for cell in part["cells"]]
        rows.append(
            [
                f"{ranks} ranks of {slots}",
                f"{100 * mean_lead(part['cells']):+.1f} ({100 * max(leads):+.1f}) %",
                *(share(part, target) for target in ("mean", "goodput", "tail")),
            ]
        )
    return rows


def misses(document: Document) -> list[list[str]]:
    """By trace and load: in how many cells goodput, and TTFT p99, miss their target."""
    return [
        [
            f"{trace}, {load_name(load)}",
            *(
                f"{len(cells) - count(cells, target)} of {len(cells)}"
                for target in ("mean", "goodput", "tail")
            ),
            f"{100 * min(map(goodput_lead, cells)):+.0f}",
            f"{max(map(tail_ratio, cells)):.2f}",
        ]
        for trace in distinct(document, "trace")
        for load in distinct(document, "load")
        for cells in [select(document, trace=trace, load=load)]
    ]


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


_TESTS: dict[str, Callable[[Cell], bool]] = {
    "mean": lambda cell: lead(cell) <= BEHIND,
    "goodput": lambda cell: goodput_lead(cell) >= -GOODPUT,
    "tail": lambda cell: tail_ratio(cell) <= TAIL,
}


def count(cells: Sequence[Cell], target: str) -> int:
    """How many cells meet a target: `mean`, `goodput` or `tail`."""
    return sum(map(_TESTS[target], cells))


def share(document: Document, target: str) -> str:
    """In how many cells a target is met."""
    return f"{count(document['cells'], target)} of {len(document['cells'])}"


def _mean(cells: Sequence[Cell], policy: str, figure: str) -> float:
    return statistics.fmean(cell["policies"][policy][figure] for cell in cells)


def tradeoff(document: Document) -> list[list[str]]:
    """What each variant gives up of one thing for another, over all traces."""
    rows = []
    for variant in dict.fromkeys(point["variant"] for point in document["points"]):
        points = [p for p in document["points"] if p["variant"] == variant]
        leads = [math.log1p(point["mean"]) for point in points]
        tails = [math.log(point["tail"]) for point in points]
        met, cells = (
            sum(point[name] for point in points) for name in ("tails_met", "cells")
        )
        rows.append(
            [
                variant,
                f"{100 * math.expm1(statistics.fmean(leads)):+.1f} %",
                f"{100 * max(point['worst_mean'] for point in points):+.1f} %",
                f"{math.exp(statistics.fmean(tails)):.2f}",
                f"{met} of {cells}",
                f"{100 * min(point['light_goodput'] for point in points):+.0f}",
            ]
        )
    return rows


def point(document: Document, variant: str, trace: str) -> dict[str, Any]:
    """What is known of a variant on a trace."""
    found: dict[str, Any] = next(
        p for p in document["points"] if p["variant"] == variant and p["trace"] == trace
    )
    return found
