"""The rows of the tables in docs/results.md that are of upstream's deployments."""

import statistics

from tables import Cell, Document, Rows, distinct, ratio, select

WHOLE, STEADY = "output_throughput", "steady_output_throughput"


def rival(cell: Cell, figure: str) -> str:
    """The rule of another engine with the greatest throughput."""
    own = ("adaptive", "off", "cap", "align")
    return max(
        (name for name in cell["policies"] if name not in own),
        key=lambda name: cell["policies"][name][figure],
    )


def rival_lead(cell: Cell, figure: str) -> float:
    """Throughput of `adaptive` over that of the best rival, less one."""
    return ratio(cell, figure, "adaptive", rival(cell, figure)) - 1


def of_length(document: Document, cost: str) -> list[tuple[list[Cell], str]]:
    """The cells as long as upstream's measurement, and the longer ones; the figure."""
    short, long = (select(document, cost=cost, times=times) for times in (1, 6))
    return [(short, WHOLE), (long, STEADY)]


def deployment(cell: Cell) -> str:
    """A deployment in words."""
    hits = f" ({cell['hits']} % cached)" if cell["hits"] else ""
    slots = f"{cell['clients']} on {cell['ranks']} × {cell['slots']}"
    lengths = f"{cell['prompt_len']:,}{hits} → {cell['output_len']:,}"
    return f"{', '.join(cell['models'])}: {lengths}, {slots}"


def deployed(document: Document, cost: str) -> Rows:
    """By deployment what each policy gains over off, as measured and longer."""
    rows = [[deployment(cell)] for cell in select(document, cost=cost, times=1)]
    for cells, figure in of_length(document, cost):
        for row, cell in zip(rows, cells, strict=True):
            best_rival = rival(cell, figure)
            row.append(f"{cell['policies']['off'][figure]:.0f}")
            for name in ("cap", "align", "adaptive", best_rival):
                row.append(f"{ratio(cell, figure, name, 'off') - 1:+.0%}")
            row[-1] += f" {best_rival}"
            row.append(f"{rival_lead(cell, figure):+.1%}")
    return rows


def worlds(document: Document) -> Rows:
    """By cost: throughput of `adaptive` over off and over the best rival."""
    rows = []
    for cost in distinct(document["cells"], "cost"):
        rows.append([cost])
        for cells, figure in of_length(document, cost):
            over_off = [ratio(cell, figure, "adaptive", "off") for cell in cells]
            leads = [rival_lead(cell, figure) for cell in cells]
            mean_lead = statistics.geometric_mean(1 + lead for lead in leads) - 1
            behind = sum(lead < -0.02 for lead in leads)
            rows[-1] += [
                f"{statistics.geometric_mean(over_off) - 1:+.0%}",
                f"{min(over_off) - 1:+.1%}",
                f"{mean_lead:+.1%}",
                f"{min(leads):+.1%}",
                f"{behind} of {len(leads)}",
            ]
    return rows


def as_published(document: Document, cost: str) -> Rows:
    """What upstream publishes for a deployment, beside `cap` here."""
    rows = []
    for cell in select(document, cost=cost, times=1):
        found = cell["policies"]["cap"][WHOLE]
        if told := sorted(set(cell["published"])):
            ends = dict.fromkeys((told[0], told[-1]))
            rows.append(
                [
                    deployment(cell),
                    ", ".join(f"{each:.0f}" for each in told),
                    f"{found:.0f}",
                    " to ".join(f"{found / each - 1:+.0%}" for each in ends),
                ]
            )
    return rows
