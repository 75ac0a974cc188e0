"""The rows of the tables in docs/results.md that are simulated.

A cell is what `simulated.py` keeps of one place of a grid: its labels, and by policy
the figures. A gain is a share: of throughput, or of 1 / mean end-to-end time where the
requests come at a given rate.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Cell = Mapping[str, Any]
Document = Mapping[str, Any]
Rows = list[list[str]]

TAIL = 1.1
"""Target of TTFT p99 over that of align."""


def select(document: Document, **labels: object) -> list[Cell]:
    """The cells with these labels."""
    wanted = labels.items()
    return [c for c in document["cells"] if all(c[k] == v for k, v in wanted)]


def distinct(cells: Iterable[Cell], label: str) -> list[Any]:
    """The values of a label, in order."""
    return list(dict.fromkeys(cell[label] for cell in cells))


def groups(cells: Sequence[Cell], *labels: str) -> dict[tuple[Any, ...], list[Cell]]:
    """The cells by these labels."""
    found: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        found.setdefault(tuple(cell[label] for label in labels), []).append(cell)
    return found


WITH_VLLM_DISPATCH = "adaptive, vLLM's dispatch"
SERVED_AS_OURS = ", order and dispatch"
"""How the names of other rules end that are served as `adaptive` is."""


def baselines(cell: Cell) -> list[str]:
    """The policies but `adaptive`, off, and all that is served in another way."""
    own = ("adaptive", "off")
    return [
        name
        for name in cell["policies"]
        if not name.startswith(own) and not name.endswith(SERVED_AS_OURS)
    ]


def ratio(cell: Cell, figure: str, policy: str, over: str) -> float:
    """A figure of a policy over that of another."""
    found = cell["policies"]
    return float(found[policy][figure] / found[over][figure])


def best(cell: Cell) -> str:
    """The policy with the shortest mean end-to-end time, but for `adaptive`."""
    names = [*baselines(cell), *(n for n in cell["policies"] if n.startswith("off"))]
    return min(names, key=lambda name: cell["policies"][name]["mean_e2el_ms"])


def lead(cell: Cell, policy: str = "adaptive") -> float:
    """How much longer its mean end-to-end time is than the best baseline's."""
    return ratio(cell, "mean_e2el_ms", policy, best(cell)) - 1


def tail(cell: Cell, policy: str = "adaptive") -> float:
    """TTFT p99 over that of align."""
    return ratio(cell, "p99_ttft_ms", policy, "align")


def goodput_lead(cell: Cell, policy: str = "adaptive") -> float:
    """Goodput less that of off, as a share."""
    found = cell["policies"]
    return float(found[policy]["goodput"] - found["off"]["goodput"])


def mean_lead(cells: Iterable[Cell], policy: str = "adaptive") -> float:
    """Geometric mean of the leads."""
    return statistics.geometric_mean(1 + lead(cell, policy) for cell in cells) - 1


MISSED: Mapping[str, Callable[[Cell], bool]] = {
    "mean": lambda cell: lead(cell) > 0.02,
    "goodput": lambda cell: goodput_lead(cell) < -0.01,
    "tail": lambda cell: tail(cell) > TAIL,
}
"""The targets that `adaptive` can miss."""


def missed(cells: Sequence[Cell], target: str) -> int:
    """In how many cells."""
    return sum(map(MISSED[target], cells))


def load_name(load: float | None) -> str:
    """A load in words."""
    return "120 % of adaptive's" if load is None else f"{100 * load:.0f} %"


# ---- Real traces


def on_traces(document: Document) -> Rows:
    """By trace and cost: what is served, and mean end-to-end times."""
    rows = []
    for (trace, cost), cells in groups(document["cells"], "trace", "cost").items():
        served = []
        for of_window in groups(cells, "first").values():
            rates = {cell["load"]: cell["rate"] for cell in of_window}
            served.append(rates[None] / 1.2 / (rates[0.9] / 0.9))
        at_90 = [cell for cell in cells if cell["load"] == 0.9]
        over_off = statistics.geometric_mean(
            ratio(cell, "mean_e2el_ms", "adaptive", "off") for cell in at_90
        )
        rows.append(
            [
                f"{trace}, {cost}",
                f"{min(served):.1f} to {max(served):.1f}",
                f"{100 * (over_off - 1):+.0f} %",
                f"{100 * mean_lead(cells):+.1f} %",
                f"{100 * max(map(lead, cells)):+.1f} %",
            ]
        )
    return rows


def more_without_padding(document: Document, trace: str) -> float:
    """How much more off serves at phi 0.5 if nothing is padded, as a share."""
    bare, padded = (
        statistics.geometric_mean(
            cell["rate"] for cell in select(document, trace=trace, cost=cost, load=0.9)
        )
        for cost in ("phi 0.5", "phi 0.5, padded")
    )
    return bare / padded - 1


def mean(cells: Sequence[Cell], policy: str, figure: str) -> float:
    """Of a figure over the cells."""
    return statistics.fmean(cell["policies"][policy][figure] for cell in cells)


def shown(cells: Sequence[Cell], policy: str, form: str) -> str:
    """Means over the cells, in a format of the figures' names.

    Times are also there in seconds, and shares in per cent: `mean_e2el_s`,
    `goodput_percent`.
    """
    found = {name: mean(cells, policy, name) for name in cells[0]["policies"][policy]}
    seconds = {f"{name[:-3]}_s": x / 1e3 for name, x in found.items() if "_ms" in name}
    shares = {f"{name}_percent": 100 * found[name] for name in ("goodput", "computed")}
    return form.format_map(found | seconds | shares)


def by_load(cells: Sequence[Cell], names: Sequence[str], form: str) -> Rows:
    """A row for the windows of each trace at each load, a column for each policy."""
    return [
        [f"{trace}, {load_name(load)}", *(shown(found, name, form) for name in names)]
        for (trace, load), found in groups(cells, "trace", "load").items()
    ]


def misses(cells: Sequence[Cell]) -> Rows:
    """By trace how many miss each target, and the worst of each."""
    return [
        [
            trace,
            *(f"{missed(found, target)} of {len(found)}" for target in MISSED),
            f"{100 * max(map(lead, found)):+.1f} %",
            f"{100 * min(map(goodput_lead, found)):+.0f}",
            f"{max(map(tail, found)):.2f}",
        ]
        for (trace,), found in groups(cells, "trace").items()
    ]


def traded(document: Document) -> list[Cell]:
    """The cells of the trade-off: no overload of `adaptive`."""
    cells = select(document, cost="phi 0.3")
    return [cell for cell in cells if cell["load"] is not None]


def trade_offs(document: Document) -> Rows:
    """What each variant of `adaptive` gives up of one thing for another."""
    cells = traded(document)
    rows = []
    for name in cells[0]["policies"]:
        if not name.startswith("adaptive"):
            continue
        tails = [tail(cell, name) for cell in cells]
        light = [cell for cell in cells if cell["load"] == 0.3]
        rows.append(
            [
                name,
                f"{100 * mean_lead(cells, name):+.1f} %",
                f"{100 * max(lead(cell, name) for cell in cells):+.1f} %",
                f"{statistics.geometric_mean(tails):.2f}",
                f"{sum(found <= TAIL for found in tails)} of {len(tails)}",
                f"{100 * min(goodput_lead(cell, name) for cell in light):+.0f}",
            ]
        )
    return rows


# ---- Agents


def of_agents(document: Document) -> list[Cell]:
    """The cells with all policies."""
    return [cell for cell in document["cells"] if baselines(cell)]


def agents_name(cell: Cell) -> str:
    """A cell in words."""
    shared = f", {cell['shared']:,} shared" if cell["shared"] else ""
    return f"{cell['cache'] / 1e6:g} M, {cell['sessions']} sessions{shared}"


def by_agents(cells: Sequence[Cell], names: Sequence[str], form: str) -> Rows:
    """A row for each cell, a column for each policy; last the best rival, and which."""
    rows = []
    for cell in cells:
        columns = (shown([cell], name, form) for name in (*names, best(cell)))
        rows.append([agents_name(cell), *columns, best(cell)])
    return rows


def agents_missed(
    cells: Sequence[Cell],
    most: float,
    over: str | None = None,
    figure: str = "mean_e2el_ms",
) -> str:
    """In how many cells `adaptive` has more than so many times the rival's figure."""
    ratios = [ratio(cell, figure, "adaptive", over or best(cell)) for cell in cells]
    missed = sum(each > most for each in ratios)
    return f"{missed} of {len(ratios)} (worst {max(ratios):.2f})"


def computed_by_ranks(document: Document, policy: str) -> str:
    """Prompt tokens that are computed in per cent, with 1, 2, 4, 8 and 16 ranks."""
    cells = [
        cell
        for cell in document["cells"]
        if cell["sessions"] == 4 * cell["ranks"]
        and (cell["cache"], cell["shared"]) == (1_000_000, 0)
    ]
    cells.sort(key=lambda cell: int(cell["ranks"]))
    return " / ".join(f"{100 * mean([c], policy, 'computed'):.0f}" for c in cells)


# ---- Instances that only prefill or only decode

BY_COUNTS = "off, vLLM 0.30"


def of_role(document: Document, role: str) -> Rows:
    """By workload and device, a figure for each load: mean times in seconds.

    Then how much less ours are than those of vLLM 0.30.
    """
    rows = []
    cells = select(document, role=role)
    for (of, *device), alike in groups(cells, "of", "cost", "ranks", "slots").items():
        cost, ranks, slots = device
        row = [f"{of}, {cost}, {ranks} × {slots}"]
        for name in ("off", BY_COUNTS, "adaptive"):
            found = (cell["policies"][name]["mean_e2el_ms"] for cell in alike)
            row.append(" / ".join(f"{each / 1e3:.1f}" for each in found))
        less = [role_lead(cell) for cell in alike]
        row.append(" / ".join(f"{100 * share:+.0f}" for share in less) + " %")
        rows.append(row)
    return rows


def role_lead(cell: Cell) -> float:
    """How much longer the mean of `adaptive` is than that of vLLM 0.30's dispatch."""
    return ratio(cell, "mean_e2el_ms", "adaptive", BY_COUNTS) - 1


# ---- Drawn lengths


def gain_lead(cell: Cell) -> float:
    """Throughput of `adaptive` over that of the best baseline, less one."""
    found = cell["policies"]
    most = max(found[name]["gain"] for name in baselines(cell))
    return float((1 + found["adaptive"]["gain"]) / (1 + most) - 1)


def synthetic(document: Document, names: Sequence[str]) -> Rows:
    """Per workload and phi: mean gains, the lead, and the tail over align's."""
    rows = []
    for label, form in (("workload", "{}"), ("phi", "phi {}")):
        for (value,), cells in groups(document["cells"], label).items():
            leads = [gain_lead(cell) for cell in cells]
            rows.append([form.format(value)])
            for name in names:
                having = [cell for cell in cells if name in cell["policies"]]
                rows[-1].append(f"{mean(having, name, 'gain'):+.0%}" if having else "–")
            rows[-1] += [f"{statistics.fmean(leads):+.1%}", f"{min(leads):+.1%}"]
            rows[-1].append(f"{statistics.geometric_mean(map(tail, cells)):.2f}")
    return rows


def gain(document: Document, policy: str, **where: object) -> float:
    """Of the one cell with these labels."""
    (cell,) = select(document, **where)
    return float(cell["policies"][policy]["gain"])


# ---- Upstream's deployments

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


def deployment(cell: Cell) -> str:
    """A deployment in words."""
    hits = f" ({cell['hits']} % cached)" if cell["hits"] else ""
    slots = f"{cell['clients']} on {cell['ranks']} × {cell['slots']}"
    lengths = f"{cell['prompt_len']:,}{hits} → {cell['output_len']:,}"
    return f"{', '.join(cell['models'])}: {lengths}, {slots}"


def deployed(document: Document, cost: str) -> Rows:
    """By deployment what each policy gains over off, as measured and six times."""
    rows = []
    for short, long in groups_of_length(document, cost):
        rows.append([deployment(short), f"{short['policies']['off'][WHOLE]:.0f}"])
        for cell, figure, own in (
            (short, WHOLE, ("cap", "align", "adaptive")),
            (long, STEADY, ("adaptive",)),
        ):
            found = rival(cell, figure)
            gains = [ratio(cell, figure, name, "off") - 1 for name in (*own, found)]
            rows[-1] += map("{:+.0%}".format, gains)
            rows[-1][-1] += f" {found}"
            rows[-1].append(f"{rival_lead(cell, figure):+.1%}")
    return rows


def groups_of_length(document: Document, cost: str) -> list[tuple[Cell, Cell]]:
    """The cells as long as upstream's measurement, each with the longer one."""
    cells = [select(document, cost=cost, times=times) for times in (1, 6)]
    return list(zip(*cells, strict=True))


def worlds(document: Document) -> Rows:
    """By cost, the last first: `adaptive` over off and over the best rival."""
    rows = []
    for cost in reversed(distinct(document["cells"], "cost")):
        rows.append([cost])
        lengths = zip(*groups_of_length(document, cost), strict=True)
        for cells, figure in zip(lengths, (WHOLE, STEADY), strict=True):
            over_off = [ratio(cell, figure, "adaptive", "off") for cell in cells]
            leads = [rival_lead(cell, figure) for cell in cells]
            rows[-1] += [
                f"{statistics.geometric_mean(over_off) - 1:+.0%}",
                f"{min(over_off) - 1:+.1%}",
                f"{statistics.geometric_mean(1 + lead for lead in leads) - 1:+.1%}",
                f"{min(leads):+.1%}",
                f"{sum(lead < -0.02 for lead in leads)} of {len(leads)}",
            ]
    return rows


def over_published(document: Document, cost: str) -> str:
    """What `cap` serves over what upstream publishes, less one, and of how many."""
    found = [cell for cell in select(document, cost=cost, times=1) if cell["published"]]
    errors = [
        cell["policies"]["cap"][WHOLE] / told - 1
        for cell in found
        for told in cell["published"]
    ]
    return f"{min(errors):+.0%} to {max(errors):+.0%} of {len(found)} deployments"


# ---- The numbers of the rule


def numbers(document: Document) -> Rows:
    """Value and where it stands; what half and twice do to the mean and TTFT p99."""
    return [
        [
            *(
                f"`{cell['name'].lstrip('_')}`",
                f"{cell['module']}",
                f"{cell['value']:g}",
            ),
            *(
                f"{change:+.1%}"
                for factor in ("half", "twice")
                for change in cell.get(factor, ())
            ),
            *([] if "half" in cell else ["–"] * 4),
        ]
        for cell in document["cells"]
    ]
