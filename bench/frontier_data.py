"""The numbers of docs/frontier.md; the text is in templates/frontier.md.jinja."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CellResult = Mapping[str, Any]
Document = Mapping[str, Any]
Rows = list[list[str]]


def baselines(document: Document) -> list[str]:
    """The settings that were chosen, one per baseline."""
    return list(document["chosen"].values())


def gain(cell: CellResult, policy: str) -> float:
    """Mean over the seeds of the gain over off, as a share."""
    return statistics.fmean(cell["policies"][policy]["gain"])


def best_baseline(document: Document, cell: CellResult) -> str:
    """The setting that gains most in this cell."""
    return max(baselines(document), key=lambda policy: gain(cell, policy))


def lead(document: Document, cell: CellResult, policy: str = "adaptive") -> float:
    """What the policy serves more than the best baseline, as a share of the latter."""
    best = gain(cell, best_baseline(document, cell))
    return (1 + gain(cell, policy)) / (1 + best) - 1


def ratio(
    cell: CellResult, policy: str, figure: str, reference: str = "align"
) -> float:
    """A figure of a policy over that of another."""
    policies = cell["policies"]
    quotient: float = policies[policy][figure] / policies[reference][figure]
    return quotient


def geometric_mean(values: Iterable[float]) -> float:
    """As is right for ratios."""
    return math.exp(statistics.fmean(map(math.log, values)))


def closed(document: Document, **where: object) -> list[CellResult]:
    """The closed loops, of these ranks or this phi."""
    return [
        cell
        for cell in document["cells"]
        if cell["closed_loop"]
        and all(cell[name] == value for name, value in where.items())
    ]


LIMITS: Mapping[str, float] = {
    "mean_gain": 0.37,
    "behind": 0.02,
    "below_off": 0.01,
    "ttft_ratio": 1.1,
    "ttft_share": 65 / 72,
    "itl_ratio": 2 / 3,
    "full_cache_gain": 0.4,
}
"""What the targets ask for, as shares."""


def mean_gain(document: Document, **where: object) -> float:
    """Mean gain of `adaptive` over the closed loops, of these ranks or this phi."""
    cells = closed(document, **where)
    return statistics.fmean(gain(cell, "adaptive") for cell in cells)


def gains(document: Document) -> list[float]:
    """The gain of `adaptive` in every cell."""
    return [gain(cell, "adaptive") for cell in document["cells"]]


def titles(document: Document) -> list[str]:
    """Heads of the columns of the baselines."""
    return [f"`{policy}`" for policy in baselines(document)]


def leads(document: Document) -> list[float]:
    """The lead of `adaptive` in every cell."""
    return [lead(document, cell) for cell in document["cells"]]


def behind(document: Document) -> int:
    """In how many cells the best baseline serves clearly more than `adaptive`."""
    return sum(value < -LIMITS["behind"] for value in leads(document))


def behind_in_points(document: Document) -> int:
    """The same, by points of the throughput of off."""
    return sum(
        gain(cell, "adaptive")
        < gain(cell, best_baseline(document, cell)) - LIMITS["behind"]
        for cell in document["cells"]
    )


def ratios(document: Document, figure: str, workload: object = None) -> list[float]:
    """A figure of `adaptive` over that of `align`, in all cells or a workload's."""
    return [
        ratio(cell, "adaptive", figure)
        for cell in document["cells"]
        if workload in (None, cell["workload"])
    ]


def slow_starts(document: Document) -> list[CellResult]:
    """The cells with a TTFT p99 further above that of `align` than is aimed at."""
    return [
        cell
        for cell in document["cells"]
        if ratio(cell, "adaptive", "p99_ttft_ms") > LIMITS["ttft_ratio"]
    ]


def by_workload(cells: Sequence[CellResult]) -> str:
    """How many cells each workload has among these, most first, in words."""
    counts = Counter(str(cell["workload"]) for cell in cells)
    return ", ".join(f"{count} of `{title}`" for title, count in counts.most_common())


def cells_behind(document: Document) -> list[CellResult]:
    """The cells in which the best baseline serves clearly more than `adaptive`."""
    return [
        cell for cell in document["cells"] if lead(document, cell) < -LIMITS["behind"]
    ]


def light_gains(document: Document) -> list[float]:
    """Gains of `adaptive` at light load."""
    return [gain(cell, "adaptive") for cell in document["cells"] if cell["light"]]


def itl_by_workload(document: Document) -> dict[str, float]:
    """Geometric mean of the ITL p99 over that of `align`."""
    return {
        str(workload): geometric_mean(ratios(document, "p99_itl_ms", workload))
        for workload in values(document, "workload")
    }


def budgets(document: Document, closed_loop: bool) -> list[Mapping[str, Any]]:
    """Runs with a TTFT budget that off keeps, of closed or of open loops."""
    names = {name(cell) for cell in document["cells"] if cell["closed_loop"]}
    return [
        run for run in document["ttft_budgets"] if (run["cell"] in names) == closed_loop
    ]


def overrun(run: Mapping[str, Any]) -> float:
    """By what share of the budget the TTFT p99 exceeds it; at most 0 if it does not."""
    return float(run["p99_ttft_ms"] / (1e3 * run["budget_s"]) - 1)


def missed(runs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The runs that exceed their budgets."""
    return [run for run in runs if overrun(run) > 0]


def kept_at(runs: Iterable[Mapping[str, Any]], load: str) -> str:
    """How many of the runs at a load keep their budgets, in words."""
    found = [run for run in runs if run["cell"].startswith(load)]
    return f"{len(found) - len(missed(found))} of {len(found)}"


def full_cache(document: Document, policy: str = "adaptive") -> dict[str, float]:
    """Gain over off where the KV cache is full, by workload."""
    return {
        title: case["policies"][policy]["gain"]["steady_output_throughput"]
        for title, case in document["cases"].items()
    }


def _by(document: Document, key: str) -> dict[object, list[CellResult]]:
    groups: dict[object, list[CellResult]] = {}
    for cell in document["cells"]:
        groups.setdefault(cell[key], []).append(cell)
    return groups


def values(document: Document, key: str) -> list[object]:
    """The workloads, the ranks or the phis of the grid."""
    return list(_by(document, key))


def groups(document: Document) -> Rows:
    """Per workload, ranks and phi: mean gains, the lead, and latencies over `align`."""
    return [
        [title.format(key), *_gains(document, cells), *_latencies(cells)]
        for key_name, title in (
            ("workload", "{}"),
            ("ranks", "{} ranks"),
            ("phi", "phi {}"),
        )
        for key, cells in _by(document, key_name).items()
    ]


def _gains(document: Document, cells: Sequence[CellResult]) -> list[str]:
    """Mean gains of all policies, and the lead of `adaptive`: its mean and least."""
    found = [lead(document, cell) for cell in cells]
    return [
        *(
            f"{statistics.fmean(gain(cell, policy) for cell in cells):+.0%}"
            for policy in ("adaptive", *baselines(document))
        ),
        f"{statistics.fmean(found):+.1%}",
        f"{min(found):+.1%}",
    ]


def _latencies(cells: Sequence[CellResult]) -> list[str]:
    return [
        f"{geometric_mean(ratio(cell, 'adaptive', figure) for cell in cells):.2f}"
        for figure in ("median_ttft_ms", "p99_ttft_ms", "p99_itl_ms", "mean_tpot_ms")
    ]


def spread(document: Document) -> float:
    """The greatest difference of a gain of `adaptive` between seeds in closed loops."""
    gains = [cell["policies"]["adaptive"]["gain"] for cell in closed(document)]
    return float(max(max(found) - min(found) for found in gains))


def least_leads(document: Document, count: int) -> Rows:
    """The cells in which the best baseline is nearest or ahead."""
    cells = sorted(document["cells"], key=lambda cell: lead(document, cell))
    rows = []
    for cell in cells[:count]:
        best = best_baseline(document, cell)
        rows.append(
            [
                name(cell),
                f"{gain(cell, 'adaptive'):+.1%}",
                f"`{best}`",
                f"{gain(cell, best):+.1%}",
                f"{lead(document, cell):+.1%}",
                f"{cell['policies']['adaptive']['p99_ttft_ms'] / 1e3:.1f}",
                f"{cell['policies'][best]['p99_ttft_ms'] / 1e3:.1f}",
            ]
        )
    return rows


def longest_tails(document: Document, count: int) -> Rows:
    """The cells with the greatest TTFT p99 over that of `align`."""
    cells = sorted(
        document["cells"], key=lambda cell: -ratio(cell, "adaptive", "p99_ttft_ms")
    )
    return [
        [
            name(cell),
            *(
                f"{cell['policies'][policy]['p99_ttft_ms'] / 1e3:.1f}"
                for policy in ("off", "align", "adaptive")
            ),
            f"{ratio(cell, 'adaptive', 'p99_ttft_ms'):.2f}",
        ]
        for cell in cells[:count]
    ]


def settings(document: Document) -> Rows:
    """Mean gain of every setting of the baselines, and which were chosen."""
    return [
        [f"`{setting}`{' (chosen)' if setting == chosen else ''}", f"{mean:+.1%}"]
        for baseline, chosen in document["chosen"].items()
        for setting, mean in document["choice"]["mean_gain"][baseline].items()
    ]


def name(cell: CellResult) -> str:
    """As `frontier_grid` names the cell."""
    return f"{cell['workload']}, {cell['ranks']} ranks, phi {cell['phi']:g}"


def seeds(document: Document) -> dict[int, int]:
    """In how many cells each seed was run."""
    return dict(Counter(seed for cell in document["cells"] for seed in cell["seeds"]))
