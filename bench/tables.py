"""The tables of the README, and of balance, results and measurements in docs.

Each stands between ``<!-- table NAME -->`` and ``<!-- end -->``; all else of the pages
is written by hand. A *lead* is by how many per cent the mean latency with `adaptive` is
below that with the best of the other rules, which is picked for each cell afterwards.
"""

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_balance.trial.verdict import Interval

Cell = Mapping[str, Any]
Rows = list[list[str]]
Results = Mapping[str, Any]

PAGES = "README.md", "docs/balance.md", "docs/results.md", "docs/measurements.md"
USUAL = "8 ranks, 32 slots, steps of 8,192"
MEAN, TAIL = "mean_e2el_ms", "p99_ttft_ms"
TPOT = "mean_tpot_ms"
LIMITS = {
    "goodput": (2000, 100),
    "within 2000/80": (2000, 80),
    "within 1500/50": (1500, 50),
    "within 600/45": (600, 45),
    "within 500/50": (500, 50),
}
"""Limits of TTFT and TPOT in milliseconds, by the figure that is the share of requests
within them: MLPerf's for DeepSeek-R1, MindIE's defaults, and llm-d's planner's of code
and chat."""
BEHIND = -0.02
"""With a lead below this, `adaptive` is behind in a cell."""

geometric = statistics.geometric_mean


def select(cells: Iterable[Cell], **labels: object) -> list[Cell]:
    """The cells with these labels."""
    return [c for c in cells if all(c[k] == v for k, v in labels.items())]


def groups(cells: Iterable[Cell], *labels: str) -> dict[tuple[Any, ...], list[Cell]]:
    """The cells by these labels."""
    by_labels: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        by_labels.setdefault(tuple(cell[label] for label in labels), []).append(cell)
    return by_labels


def figure(cell: Cell, policy: str, name: str = MEAN) -> float:
    """One figure of a policy."""
    return float(cell["policies"][policy][name])


def rivals(cell: Cell) -> list[str]:
    """All rules but `adaptive`; variants of a rule only in cells of agents."""
    return [
        name
        for name in cell["policies"]
        if not name.startswith("adaptive")
        and (", " not in name or cell.get("of") == "agents")
    ]


def best(cell: Cell) -> str:
    """The rival with the lowest mean latency."""
    return min(rivals(cell), key=lambda name: figure(cell, name))


def lead(cell: Cell) -> float:
    """The lead in a cell, as a share."""
    return 1 - figure(cell, "adaptive") / figure(cell, best(cell))


def mean_ratio(
    cells: Iterable[Cell], policy: str, base: str, name: str = MEAN
) -> float:
    """Geometric mean of a figure of a policy over that of another."""
    return geometric(figure(c, policy, name) / figure(c, base, name) for c in cells)


def mean_lead(cells: Iterable[Cell]) -> float:
    """The lead by the geometric mean of the cells' ratios."""
    return 1 - geometric(1 - lead(cell) for cell in cells)


def seconds(cell: Cell, policy: str, name: str = MEAN) -> str:
    """A figure in seconds, as text."""
    return f"{figure(cell, policy, name) / 1e3:.1f}"


def load_name(load: float | None) -> str:
    """A load as text."""
    return "all slots" if load is None else f"{100 * load:.0f} %"


def place(cell: Cell) -> str:
    """A cell as text."""
    return f"{cell['of']}, {load_name(cell['load'])}"


# ---- Regimes

FIRST_TOKEN = "median_ttft_ms"
WITHIN = "goodput"
TIMES = MEAN, FIRST_TOKEN, TAIL
LIMITED = "adaptive, 2 s and 100 ms"
POISSON = "requests come at random, drawn lengths"


def points(cell: Cell, policy: str, base: str, name: str = WITHIN) -> float:
    """How many more per cent of the requests are within the limits than with `base`."""
    return 100 * (figure(cell, policy, name) - figure(cell, base, name))


def ratio(cells: Sequence[Cell], policy: str, base: str, name: str) -> str:
    """Mean and maximum of a figure over that of `base`."""
    maximum = max(figure(c, policy, name) / figure(c, base, name) for c in cells)
    return f"{mean_ratio(cells, policy, base, name):.2f}; {maximum:.2f}"


def more_within(cells: Sequence[Cell], policy: str, base: str) -> str:
    """Mean and minimum of `points`."""
    differences = [points(cell, policy, base) for cell in cells]
    return f"{statistics.fmean(differences):+.1f}; {min(differences):+.1f}"


def ahead(cell: Cell, rival: str) -> float:
    """By which share a rival's mean latency is below that of `adaptive`."""
    return 1 - figure(cell, rival) / figure(cell, "adaptive")


def is_ahead_in_both(cell: Cell, rival: str) -> bool:
    """Whether a rival is ahead in latency and in requests within the limits."""
    return ahead(cell, rival) > 0 and points(cell, rival, "adaptive") > 0


def regimes(results: Results) -> Rows:
    """By regime how `adaptive`, and with limits, compares with `off` and the best."""
    head = ["regime", "cells", "latency over `off`", "lead over the best rule"]
    head += ["TTFT p50 over `off`", "p99", "within, points"]
    rows: Rows = [[*head, "with limits: latency", "p50", "p99", "within"]]
    all_cells, unseen = (results[name]["cells"] for name in ("regimes", "unseen"))
    for name, cells in [
        *((n, c) for (n,), c in groups(all_cells, "regime").items()),
        ("all", all_cells),
        *((f"unseen windows of {n}", c) for (n,), c in groups(unseen, "of").items()),
    ]:
        rows.append(
            [
                name,
                str(len(cells)),
                f"{mean_ratio(cells, 'adaptive', 'off'):.2f}",
                mean_and_worst(cells),
                ratio(cells, "adaptive", "off", FIRST_TOKEN),
                ratio(cells, "adaptive", "off", TAIL),
                more_within(cells, "adaptive", "off"),
                f"{mean_ratio(cells, LIMITED, 'off'):.2f}",
                *(ratio(cells, LIMITED, "off", time) for time in (FIRST_TOKEN, TAIL)),
                more_within(cells, LIMITED, "off"),
            ]
        )
    return rows


def mean_and_worst(cells: Sequence[Cell]) -> str:
    """Mean lead over the best rival, and the worst, with its rival and cell."""
    leads = [lead(cell) for cell in cells]
    worst = cells[leads.index(min(leads))]
    numbers = f"{100 * mean_lead(cells):+.1f}; {100 * min(leads):+.1f}"
    return f"{numbers} ({best(worst)}, {place(worst)})"


def usual(results: Results) -> list[Cell]:
    """The cells of the first regime."""
    return select(results["regimes"]["cells"], regime=USUAL)


SEEN = ("off", "adaptive", LIMITED)


def first_tokens(results: Results) -> Rows:
    """Latencies of `off` → `adaptive` → with limits, by load."""
    head = ["requests, load", "latency, s", "TTFT p50, s", "TTFT p99, s", "TPOT, ms"]
    limits = [*LIMITS.items()][:2]
    rows: Rows = [[*head, *(f"≤ {a:,} and {b} ms, %" for _, (a, b) in limits)]]
    by_place: dict[str, list[Cell]] = {}
    poisson = select(results["regimes"]["cells"], regime=POISSON)
    for cell in (*usual(results), *poisson):
        ranks = f" on {cell['first']} ranks" * (cell["regime"] == POISSON)
        where = f"{cell['of']}{ranks}, {load_name(cell['load'])}"
        by_place.setdefault(where, []).append(cell)
    for where, cells in by_place.items():
        rows.append([where])
        for name in (MEAN, FIRST_TOKEN, TAIL, TPOT, *(mean for mean, _ in limits)):
            unit = 100 if name in LIMITS else 1 if name == TPOT else 1e-3
            form = ".1f" if unit == 1e-3 else ".0f"
            means = (
                unit * statistics.fmean(figure(cell, policy, name) for cell in cells)
                for policy in SEEN
            )
            rows[-1].append(" → ".join(f"{mean:{form}}" for mean in means))
    all_cells = [cell for cells in by_place.values() for cell in cells]
    rows.append([f"cells of {len(all_cells)} in which 99 % keep both", "", "", "", ""])
    for name, _ in limits:
        counts = (sum(figure(c, p, name) >= 0.99 for c in all_cells) for p in SEEN)
        rows[-1].append(" → ".join(map(str, counts)))
    return rows


KNOWN_AS = {
    "cap": "vllm-ascend #5212",
    "sglang-100": "SGLang's first prefill delayer, up to 100 passes",
    "sglang23-30": "SGLang's of 0.5.23, up to 30 passes, without its KV watermark",
    "sglang23-30-10": "`sglang23-30` with 10 decode steps after each prefill",
    "tensorrt-60-0": "TensorRT-LLM #6061, `align` with other waits",
    "atom": "ATOM's coalescer (#1611), from its description",
    "vllm-4": "vLLM's interval between prefills, with its saturation guard",
    "vllm-8": "as `vllm-4`",
    "mindie-waste": "MindIE's vote, stage rule WASTE",
    "mindie-laxity": "MindIE's vote, stage rule LAXITY",
}
"""The rules' origins, and what is left out of them."""


def of_rivals(results: Results) -> Rows:
    """How each rival compares with `adaptive` over all cells in which it is run."""
    head = ["rule", "latency over `adaptive`", "least", "TTFT p50", "TTFT p99"]
    head += ["within, points", "cells ahead in latency", "in both"]
    rows: Rows = [head]
    cells = results["regimes"]["cells"]
    for name in rivals(usual(results)[0]):
        cells_of = [cell for cell in cells if name in cell["policies"]]
        mean, *tokens = (
            f"{mean_ratio(cells_of, name, 'adaptive', time):.2f}" for time in TIMES
        )
        largest = max(ahead(cell, name) for cell in cells_of)
        both = [cell for cell in cells_of if is_ahead_in_both(cell, name)]
        where = ""
        if both:
            worst = max(both, key=lambda cell: ahead(cell, name))
            where = f": {100 * ahead(worst, name):.1f} % in {place(worst)}"
        rows.append(
            [
                f"`{name}`: {KNOWN_AS[name]}" if name in KNOWN_AS else f"`{name}`",
                mean,
                f"{1 - largest:.2f}",
                *tokens,
                more_within(cells_of, name, "adaptive").partition(";")[0],
                f"{sum(ahead(c, name) > -BEHIND for c in cells_of)} of {len(cells_of)}",
                f"{len(both)}{where}",
            ]
        )
    return rows


def one_rank(results: Results) -> Rows:
    """Figures of `adaptive` over those of `off` on a single rank."""
    head = ["c, ms", "slots", "latency", "TTFT p50", "TTFT p99", "within, points"]
    rows: Rows = [head]
    for (c, slots), cells in groups(results["one_rank"]["cells"], "c", "slots").items():
        figures = (ratio(cells, "adaptive", "off", name) for name in TIMES)
        within = more_within(cells, "adaptive", "off")
        rows.append([f"{1e3 * c:g}", f"{slots}", *figures, within])
    return rows


# ---- Agents, and instances of one role


def agents(results: Results) -> Rows:
    """Of sessions: latency, TTFT p50 and p99 in s, within limits, tokens computed."""
    form = "{mean_e2el_s:.0f}; {median_ttft_s:.1f}; {p99_ttft_s:.0f}; {goodput:.0%}; "
    form += "{computed:.0%}"
    head = ["sessions", "`off`", "`adaptive`", "best other rule", "which"]
    rows: Rows = [head]
    synthetic = results["aiperf"]["cells"]
    for cell in (*select(results["agents"]["cells"], role="both"), *synthetic):
        shared = f", {cell['shared']:,} tokens shared" if cell["shared"] else ""
        columns = []
        for name in ("off", "adaptive", best(cell)):
            figures = cell["policies"][name]
            in_seconds = {f"{n[:-3]}_s": figures[n] / 1e3 for n in TIMES}
            columns.append(form.format(**figures, **in_seconds))
        of = ", of AIPerf" * (cell in synthetic)
        rows.append([f"{cell['load']}{of}{shared}", *columns, best(cell)])
    return rows


def roles(results: Results) -> Rows:
    """Mean latency on instances that only prefill or decode, by load."""
    head = ["instance", "vLLM 0.23", "vLLM 0.30", "ours", "against 0.30"]
    rows: Rows = [head]
    for role in ("decode", "prefill"):
        cells = select(results["agents"]["cells"], role=role)
        for (of, ranks), same in groups(cells, "of", "ranks").items():
            names = "off", "off, vLLM 0.30", "adaptive"
            times = (" / ".join(seconds(c, name) for c in same) for name in names)
            changes = (figure(c, "adaptive") / figure(c, names[1]) - 1 for c in same)
            change = " / ".join(f"{100 * share:+.0f}" for share in changes)
            rows.append([f"{role}, {of}, {ranks} ranks", *times, f"{change} %"])
    return rows


# ---- The headline


WORKLOADS = {
    "Azure code": "code (Azure)",
    "Azure conv": "conversations (Azure)",
    "Mooncake": "long contexts (Mooncake)",
}
"""Traces, by the name of their workload on the README."""


def headline(results: Results) -> Rows:
    """Latency and first token of `adaptive` over `off`, by workload and load."""
    rows: Rows = [["simulated", "load, %", "mean latency", "median TTFT"]]
    for of, workload in WORKLOADS.items():
        cells = [c for c in select(usual(results), of=of) if c["load"] is not None]
        rows.append([workload, *over_off(cells)])
    random = select(results["regimes"]["cells"], regime=POISSON)
    rows.append(["random arrivals (Poisson)", *over_off(random)])
    return rows


def over_off(cells: Sequence[Cell]) -> list[str]:
    """The loads, and by load the latency and the first token over those of `off`."""
    by_load = [group for _, group in sorted(groups(cells, "load").items())]
    columns = [[f"{100 * group[0]['load']:.0f}" for group in by_load]]
    for name in (MEAN, FIRST_TOKEN):
        ratios = (mean_ratio(group, "adaptive", "off", name) for group in by_load)
        columns.append([f"{ratio:.2f}" for ratio in ratios])
    return [" / ".join(column) for column in columns]


# ---- Real ranks


def real_results(results: Results) -> list[dict[str, Any]]:
    """The results of real ranks, one for each machine."""
    heads = [results[name] for name in sorted(results) if name.startswith("real-")]
    return [
        {**head, "cells": [{**cell, **_of_all(head)} for cell in head["cells"]]}
        for head in heads
    ]


def _of_all(head: dict[str, Any]) -> dict[str, Any]:
    """The entries of a result that hold for all its cells."""
    return {name: head[name] for name in ("layers", "step tokens")}


def measured(results: Results) -> Iterator[tuple[str, Cell]]:
    """The cells of real ranks that were run, with the machine."""
    for result in real_results(results):
        for cell in result["cells"]:
            if cell["blocks"]:
                yield result["machine"], cell


def mean_of(cell: Cell, policy: str, name: str) -> float:
    """A figure of real ranks."""
    return float(cell["policies"][policy][name])


def real_place(cell: Cell) -> str:
    """A cell of real ranks as text, by what differs from the first."""
    parts = [cell["of"], load_name(cell["load"])]
    if cell["divided by"] > 1:
        sent = f"{cell['prompt']} → {cell['answer']}" if "prompt" in cell else "divided"
        parts[0] += f", {sent}"
    parts.append("asynchronous" if cell["asynchronous"] else "synchronous")
    if 2 * cell["dense_layers"] != cell["layers"]:
        dense = cell["dense_layers"] or "none"
        parts.append(f"{dense} of {cell['layers']} layers dense")
    if cell["drafts"]:
        parts.append(f"{cell['drafts']} drafts (ngram)")
    return "; ".join(parts)


def _cell_key(cell: Cell) -> tuple[Any, ...]:
    names = "of", "load", "asynchronous", "drafts"
    dense = cell["dense_layers"] / cell["layers"]
    return dense, *(cell[name] for name in names)


CLOSE = 0.05
"""A predicted ratio that is off by no more counts as right."""


def real(results: Results) -> Rows:
    """Latencies over those of `off`: measured, with intervals, and predicted."""
    policies = "cap", "align", "adaptive"
    rows: Rows = [["requests", "`off`, s", *(f"`{name}`" for name in policies)]]
    cells, machine = list(measured(results)), ""
    for machine_of, cell in cells:
        if machine != machine_of:
            rows.append([f"**{machine_of}**", *("" for _ in rows[0][1:])])
            machine = machine_of
        rows.append([real_place(cell), f"{mean_of(cell, 'off', MEAN) / 1e3:.1f}"])
        for name in policies:
            mean, low, high = cell["policies"][name]["ratio"]
            ends = f" ({low:.2f}–{high:.2f})" if low < high else ""
            after = f" / {cell['predicted'][name]:.2f}" if cell["predicted"] else ""
            rows[-1].append(f"{mean:.2f}{ends}{after}")
    run = {_cell_key(cell) for _, cell in cells}
    for result in real_results(results)[:1]:
        for cell in result["cells"]:
            if _cell_key(cell) not in run:
                rows.append([real_place(cell), "not run", *("" for _ in policies)])
    rows += _of_all_workloads([cell for _, cell in cells], policies)
    return rows


def _of_all_workloads(cells: Sequence[Cell], policies: Sequence[str]) -> Rows:
    """Means, numbers of cells in which a rule is ahead, and right predictions."""
    predicted = [cell for cell in cells if cell["predicted"]]
    predictions = [cell["predicted"] for cell in predicted]
    rows: Rows = [
        ["all, geometric mean (95 %, over cells)"],
        ["over `adaptive`"],
        ["all, median TTFT"],
        ["ahead of `adaptive`"],
    ]
    rows += [[f"predicted within {100 * CLOSE:.0f} points"]]
    for row in rows:
        row.append("")
    of_adaptive = [cell["policies"]["adaptive"]["ratio"][0] for cell in cells]
    for name in policies:
        ratios = [cell["policies"][name]["ratio"][0] for cell in cells]
        over_adaptive = [x / y for x, y in zip(ratios, of_adaptive, strict=True)]
        first_token = geometric(
            mean_of(cell, name, FIRST_TOKEN) / mean_of(cell, "off", FIRST_TOKEN)
            for cell in cells
        )
        ahead = sum(ratio < 1 for ratio in over_adaptive)
        expected = sum(p[name] < p["adaptive"] for p in predictions)
        close = sum(
            abs(cell["policies"][name]["ratio"][0] - cell["predicted"][name]) <= CLOSE
            for cell in predicted
        )
        texts = [_over_cells(ratios), _over_cells(over_adaptive), f"{first_token:.2f}"]
        texts.append(f"{ahead} / {expected} of {len(cells)}")
        if name == "adaptive":
            texts[1] = texts[3] = ""
        texts.append(f"{close} of {len(predicted)}")
        for row, text in zip(rows, texts, strict=True):
            row.append(text)
    return rows


def _over_cells(ratios: Sequence[float]) -> str:
    """The geometric mean, with its interval over cells."""
    mean, low, high = Interval.of([*map(math.log, ratios)]).ratios
    return f"{mean:.2f}" + (f" ({low:.2f}–{high:.2f})" if high < math.inf else "")


def real_costs(results: Results) -> Rows:
    """Learned costs and exchange in ms: the median over cells, minimum and maximum."""
    parts = "decode", "own", "shared", "padding", "attention"
    rows: Rows = [["cells", *parts, "exchange"]]
    for machine, all_cells in groups_of(measured(results)).items():
        rows.append([f"**{machine}**", *("" for _ in rows[0][1:])])
        for (load, dense), cells in groups(all_cells, "load", "dense_layers").items():
            learned = [cell["learned_seconds"] for cell in cells]
            costs = (spread([1e3 * of[part] for of in learned]) for part in parts)
            exchange = spread([cell["exchange_us"] / 1e3 for cell in cells], ".1f")
            layers = f"{dense} of {cells[0]['layers']} layers dense"
            place = f"{len(cells)} of {load_name(load)}; {layers}"
            rows.append([place, *costs, exchange])
    return rows


def groups_of(pairs: Iterable[tuple[str, Cell]]) -> dict[str, list[Cell]]:
    """Cells by their machine."""
    by_machine: dict[str, list[Cell]] = {}
    for machine, cell in pairs:
        by_machine.setdefault(machine, []).append(cell)
    return by_machine


def spread(values: Sequence[float], form: str = ".0f") -> str:
    """The median, with minimum and maximum where they differ."""
    median, *ends = (
        f"{value:{form}}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return median if len({*ends}) == 1 else f"{median} ({'–'.join(ends)})"


# ---- How it was made


MADE = "regimes", "unseen", "one_rank", "agents", "aiperf"


def made(results: Results) -> Rows:
    """The interpreter or machine, and the policies' hash, of each result."""
    rows: Rows = [["result", "made with", "policies"]]
    for name in [name for name in MADE if name in results]:
        head = results[name]
        version = head["versions"]
        python = f"{head['interpreter']} {version['python']}"
        rows.append([name, python, version["balance"]])
    for head in real_results(results):
        rows.append(["real", head["machine"], head["versions"]["balance"]])
    return rows


TABLES: dict[str, Callable[[Results], Rows]] = {
    each.__name__: each
    for each in (
        headline,
        regimes,
        first_tokens,
        of_rivals,
        one_rank,
        agents,
        roles,
        real,
        real_costs,
        made,
    )
}


def markdown(rows: Rows) -> str:
    """A table, its first row the head; all columns but the first are right-aligned."""
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    line = "|".join(["---", *["--:"] * (len(rows[0]) - 1)])
    return "\n".join([head, f"|{line}|", *others])


def filled(page: str, results: Results) -> str:
    """The page with new tables."""
    pattern = r"(<!-- table (\w+) -->\n).*?(<!-- end -->)"

    def table(match: re.Match[str]) -> str:
        try:
            rows = TABLES[match[2]](results)
        except KeyError:  # a result that was not made: the page says so
            rows = [["*not made yet*"]]
        return f"{match[1]}{markdown(rows)}\n{match[3]}"

    return re.sub(pattern, table, page, flags=re.S)


def fill(root: Path) -> None:
    """Fills the tables of the pages from the files in bench/results."""
    paths = (root / "bench" / "results").glob("*.json")
    results = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in paths}
    for name in PAGES:
        page = root / name
        page.write_text(filled(page.read_text(encoding="utf-8"), results), "utf-8")
