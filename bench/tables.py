"""The tables of README.md, docs/results.md and docs/measurements.md.

Each stands between ``<!-- table NAME -->`` and ``<!-- end -->``; all else of the pages
is written by hand. A *lead* is how much less time a request takes on average with
`adaptive` than with the best of the other rules, in per cent of the latter, which is
picked for each cell afterwards.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Cell = Mapping[str, Any]
Rows = list[list[str]]
Results = Mapping[str, Any]

PAGES = "README.md", "docs/results.md", "docs/measurements.md"
USUAL = "8 ranks, 32 slots, steps of 8,192"
MEAN, TAIL, SERVED = "mean_e2el_ms", "p99_ttft_ms", "output_throughput"
TPOT = "mean_tpot_ms"
LIMITS = {
    "goodput": (2000, 100),
    "within 2000/80": (2000, 80),
    "within 1500/50": (1500, 50),
    "within 600/45": (600, 45),
    "within 500/50": (500, 50),
}
"""Figures that are the share of requests with a TTFT and a TPOT within so many
milliseconds: MLPerf's of servers of DeepSeek-R1, MindIE's defaults, and llm-d's
planner's of code and chat."""
STRICT = tuple(LIMITS)[1]

geometric = statistics.geometric_mean


def select(cells: Iterable[Cell], **labels: object) -> list[Cell]:
    """The cells with these labels."""
    return [c for c in cells if all(c[k] == v for k, v in labels.items())]


def groups(cells: Iterable[Cell], *labels: str) -> dict[tuple[Any, ...], list[Cell]]:
    """The cells by these labels."""
    found: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        found.setdefault(tuple(cell[label] for label in labels), []).append(cell)
    return found


def figure(cell: Cell, policy: str, name: str = MEAN) -> float:
    """One figure of a policy."""
    return float(cell["policies"][policy][name])


def rivals(cell: Cell) -> list[str]:
    """All rules but `adaptive` as they are served, or as they are to agents."""
    return [
        name
        for name in cell["policies"]
        if not name.startswith("adaptive")
        and (", " not in name or cell.get("of") == "agents")
        and name != "our dispatch alone"
    ]


def best(cell: Cell) -> str:
    """The rival with the shortest mean time."""
    return min(rivals(cell), key=lambda name: figure(cell, name))


def lead(cell: Cell) -> float:
    """Of one cell, as a share."""
    return 1 - figure(cell, "adaptive") / figure(cell, best(cell))


def mean_ratio(cells: Iterable[Cell], one: str, over: str, name: str = MEAN) -> float:
    """Geometric mean of a figure of a policy over that of another."""
    return geometric(figure(c, one, name) / figure(c, over, name) for c in cells)


def mean_lead(cells: Sequence[Cell]) -> float:
    """From the geometric mean of the ratios."""
    return 1 - geometric(1 - lead(cell) for cell in cells)


def percent(share: float, form: str = "+.1f") -> str:
    """With its sign."""
    return f"{100 * share:{form}} %"


def seconds(cell: Cell, policy: str, name: str = MEAN) -> str:
    """A time."""
    return f"{figure(cell, policy, name) / 1e3:.1f}"


def load_name(load: float | None) -> str:
    """A load in words."""
    return "all slots" if load is None else f"{100 * load:.0f} %"


def place(cell: Cell) -> str:
    """A cell in words."""
    return f"{cell['of']}, {load_name(cell['load'])}"


# ---- Regimes


def regimes(results: Results) -> Rows:
    """By regime how `adaptive` compares with `off` and with the best rival."""
    head = ["regime", "cells", "latency", "lead", "worst", "TTFT p50", "most"]
    rows: Rows = [head]
    by_regime = groups(results["regimes"]["cells"], "regime")
    everything = [cell for cells in by_regime.values() for cell in cells]
    for name, cells in [
        *((n, c) for (n,), c in by_regime.items()),
        ("all", everything),
    ]:
        latency = f"{mean_ratio(cells, 'adaptive', 'off'):.2f}"
        rows.append(
            [name, str(len(cells)), latency, *leads(cells), *first_token(cells)]
        )
    return rows


def leads(cells: Sequence[Cell]) -> list[str]:
    """Over the best rival: the mean, and the worst with its rival and place."""
    worst = min(cells, key=lead)
    place_of = f"{best(worst)}, {place(worst)}"
    return [f"{100 * mean_lead(cells):+.1f}", f"{100 * lead(worst):+.1f} ({place_of})"]


def first_token(cells: Sequence[Cell]) -> list[str]:
    """Of the medians over those of `off`: the mean, and the most."""
    most = max(
        figure(c, "adaptive", FIRST_TOKEN) / figure(c, "off", FIRST_TOKEN)
        for c in cells
    )
    return [f"{mean_ratio(cells, 'adaptive', 'off', FIRST_TOKEN):.2f}", f"{most:.2f}"]


def usual(results: Results) -> list[Cell]:
    """The cells of the first regime, in which all variants are run."""
    return select(results["regimes"]["cells"], regime=USUAL)


def barrier(results: Results) -> Rows:
    """How much of what the barrier costs `adaptive` wins; times are in seconds."""
    rows: Rows = [["load", "`off`", "`adaptive`", "no barrier", "won"]]
    names = "off", "adaptive", "off, no barrier"
    for (load,), found in groups(results["barrier"]["cells"], "load").items():
        means = [statistics.fmean(figure(c, n) for c in found) for n in names]
        times = (f"{mean / 1e3:.1f}" for mean in means)
        rows.append([load_name(load), *times, won(*means)])
    return rows


def won(off: float, adaptive: float, without: float) -> str:
    """Of what `off` takes longer than ranks without a barrier."""
    return percent((off - adaptive) / (off - without), ".0f")


WITHIN = "within 2 s / 80 ms"
"""Its column is the share of requests that keep both limits, in per cent."""


def seen(cells: Sequence[Cell]) -> list[str]:
    """What users see, `off` → `adaptive`, means of the cells."""
    columns = [f"{mean_ratio(cells, 'adaptive', 'off'):.2f}"]
    for name, form, unit in (
        (FIRST_TOKEN, ".1f", 1e-3),
        (TAIL, ".1f", 1e-3),
        (TPOT, ".0f", 1),
        (STRICT, ".0f", 100),
    ):
        off, now = (
            unit * statistics.fmean(figure(cell, policy, name) for cell in cells)
            for policy in ("off", "adaptive")
        )
        columns.append(f"{off:{form}} → {now:{form}}")
    return columns


POISSON = "requests come at random, drawn lengths"


def first_tokens(results: Results) -> Rows:
    """What users see in windows of traces, and where requests come at random."""
    head = ["requests, load", "latency", "TTFT p50, s", "TTFT p99, s", "TPOT, ms"]
    rows: Rows = [[*head, WITHIN]]
    for (of, load), cells in groups(usual(results), "of", "load").items():
        rows.append([f"{of}, {load_name(load)}", *seen(cells)])
    for cell in select(results["regimes"]["cells"], regime=POISSON):
        where = f"{cell['of']}, {cell['first']} ranks, {load_name(cell['load'])}"
        rows.append([where, *seen([cell])])
    return rows


def one_rank(results: Results) -> Rows:
    """On a rank that waits for no other: figures of `adaptive` over those of `off`."""
    head = ["c, ms", "slots", "time", "worst", "TTFT p50", "most", "TTFT p99", "most"]
    rows: Rows = [[*head, "`eb`: time", "worst"]]
    for (c, slots), cells in groups(results["one_rank"]["cells"], "c", "slots").items():
        rows.append([f"{1e3 * c:g}", f"{slots}"])
        for policy, name in (
            *(("adaptive", each) for each in (MEAN, "median_ttft_ms", TAIL)),
            ("eb", MEAN),
        ):
            ratios = [figure(x, policy, name) / figure(x, "off", name) for x in cells]
            worst = f"{max(ratios):.3f}" if name == MEAN else f"{max(ratios):.2f}"
            if name == MEAN and policy == "adaptive":
                worst += f" ({place(cells[ratios.index(max(ratios))])})"
            rows[-1] += [f"{geometric(ratios):.2f}", worst]
    return rows


# ---- Deployments


def best_served(cell: Cell) -> str:
    """The rival with most tokens per second."""
    return max(rivals(cell), key=lambda name: figure(cell, name, SERVED))


def served_lead(cell: Cell, over: str | None = None) -> float:
    """Tokens per second over those of a rule, or of the best rival, less one."""
    name = over or best_served(cell)
    return figure(cell, "adaptive", SERVED) / figure(cell, name, SERVED) - 1


def deployment(cell: Cell) -> str:
    """A deployment in words."""
    hits = f" ({cell['hits']} % cached)" if cell["hits"] else ""
    slots = f"{cell['clients']} on {cell['ranks']} × {cell['slots']}"
    lengths = f"{cell['prompt_len']:,}{hits} → {cell['output_len']:,}"
    return f"{', '.join(cell['models'])}: {lengths}, {slots}"


def deployments(results: Results) -> Rows:
    """On A3 as upstream's tests have it, by deployment."""
    head = ["deployment", "`off`, tok/s", "`cap`", "`adaptive`"]
    rows: Rows = [[*head, "over the best other rule"]]
    for cell in select(results["deployments"]["cells"], device="A3, padded"):
        off = figure(cell, "off", SERVED)
        gains = (figure(cell, n, SERVED) / off - 1 for n in ("cap", "adaptive"))
        rows.append(
            [
                deployment(cell),
                f"{off:.0f}",
                *(percent(gain, "+.0f") for gain in gains),
                f"{percent(served_lead(cell))} {best_served(cell)}",
            ]
        )
    return rows


def devices(results: Results) -> Rows:
    """Over all deployments, by device."""
    rows: Rows = [["`adaptive` over", "device", "mean", "median", "least to most"]]
    for over in ("cap", None):
        for (device,), cells in groups(
            results["deployments"]["cells"], "device"
        ).items():
            ratios = [1 + served_lead(cell, over) for cell in cells]
            mean, median = geometric(ratios), statistics.median(ratios)
            row = [f"`{over}`" if over else "the best other rule", device]
            ends = f"{min(ratios):.2f} to {max(ratios):.2f}"
            rows.append([*row, f"{mean:.2f}", f"{median:.2f}", ends])
    return rows


# ---- What others have published


def error(simulated: float, published: float) -> str:
    """Of what is simulated."""
    return percent(simulated / published - 1, "+.0f")


def published(results: Results) -> Rows:
    """What others measured on A3, and what is simulated of it."""
    rows: Rows = [["what", "figure", "published", "simulated", "error"]]
    names = {TPOT: "TPOT, ms", SERVED: "tokens/s", TAIL: "TTFT p99, s"}
    names |= {"median_ttft_ms": "TTFT p50, s"}
    for cell in results["published"]["cells"]:
        rule, *_ = cell["policies"]
        fitted = " (fitted to it)" * cell["fitted"]
        for name, measured in cell["published"].items():
            unit = 1e-3 if "ttft" in name else 1
            found, told = (
                f"{unit * x:.4g}" for x in (figure(cell, rule, name), measured)
            )
            share = error(figure(cell, rule, name), measured)
            rows.append([cell["of"], names[name], told, found, share + fitted])
    return rows


def baselines(results: Results) -> Rows:
    """What vllm-ascend's tests expect on A3, and what `cap` serves in simulation."""
    head = ["deployment", "published, tok/s", "A3, padded", "A3", "error"]
    rows: Rows = [head]
    cells = results["deployments"]["cells"]
    padded = select(cells, device="A3, padded")
    for one, other in zip(padded, select(cells, device="A3"), strict=True):
        if known := sorted(one["published"]):
            found = [figure(cell, "cap", SERVED) for cell in (one, other)]
            ends = sorted({known[0], known[-1]})
            told = " to ".join(f"{each:.0f}" for each in ends)
            share = " to ".join(error(found[0], each) for each in ends)
            rows.append([deployment(one), told, *(f"{x:.0f}" for x in found), share])
    return rows


# ---- Agents, and instances of one role


def agents(results: Results) -> Rows:
    """Sessions: mean time and TTFT p99 in seconds, prompt tokens computed in %."""
    form = "{mean_e2el_s:.0f} / {p99_ttft_s:.0f} / {computed:.0%}"
    head = ["sessions", "`off`", "`adaptive`", "the best other rule", "which"]
    rows: Rows = [head]
    for cell in select(results["agents"]["cells"], role="both"):
        shared = f", {cell['shared']:,} tokens shared" if cell["shared"] else ""
        columns = []
        for name in ("off", "adaptive", best(cell)):
            found = cell["policies"][name]
            times = {f"{n[:-3]}_s": found[n] / 1e3 for n in (MEAN, TAIL)}
            columns.append(form.format(computed=found["computed"], **times))
        rows.append([f"{cell['load']}{shared}", *columns, best(cell)])
    return rows


def roles(results: Results) -> Rows:
    """Mean times of instances that only prefill or decode, by load."""
    head = ["instance", "vLLM 0.23", "vLLM 0.30", "ours", "against 0.30"]
    rows: Rows = [head]
    for role in ("decode", "prefill"):
        cells = select(results["agents"]["cells"], role=role)
        for (of, ranks), alike in groups(cells, "of", "ranks").items():
            names = "off", "off, vLLM 0.30", "adaptive"
            times = (" / ".join(seconds(c, name) for c in alike) for name in names)
            less = (figure(c, "adaptive") / figure(c, names[1]) - 1 for c in alike)
            change = " / ".join(f"{100 * each:+.0f}" for each in less)
            rows.append([f"{role}, {of}, {ranks} ranks", *times, f"{change} %"])
    return rows


# ---- The headline


FIRST_TOKEN = "median_ttft_ms"

WORKLOADS = {
    "Azure code": "code (Azure)",
    "Azure conv": "conversations (Azure)",
    "Mooncake": "long contexts (Mooncake)",
}
"""Traces, by the name of their workload on the README."""


def headline(results: Results) -> Rows:
    """Latency and first token of `adaptive` over `off`, by workload and load."""
    rows: Rows = [["simulated", "load, %", "mean latency", "median TTFT"]]
    for of, what in WORKLOADS.items():
        cells = [c for c in select(usual(results), of=of) if c["load"] is not None]
        rows.append([what, *over_off(cells)])
    random = select(results["regimes"]["cells"], regime=POISSON)
    rows.append(["random arrivals (Poisson)", *over_off(random)])
    return rows


def over_off(cells: Sequence[Cell]) -> list[str]:
    """The loads, and by load the latency and the first token over those of `off`."""
    by_load = [found for _, found in sorted(groups(cells, "load").items())]
    columns = [[f"{100 * found[0]['load']:.0f}" for found in by_load]]
    for name in (MEAN, FIRST_TOKEN):
        ratios = (mean_ratio(found, "adaptive", "off", name) for found in by_load)
        columns.append([f"{ratio:.2f}" for ratio in ratios])
    return [" / ".join(column) for column in columns]


# ---- Real ranks


def real_results(results: Results) -> list[dict[str, Any]]:
    """Of each machine on which real ranks were measured."""
    found = [results[name] for name in sorted(results) if name.startswith("real-")]
    return [
        {**head, "cells": [{**cell, **_of_all(head)} for cell in head["cells"]]}
        for head in found
    ]


def _of_all(head: dict[str, Any]) -> dict[str, Any]:
    """What a result says of all its cells."""
    return {name: head[name] for name in ("layers", "step tokens")}


def measured(results: Results) -> Iterator[tuple[str, Cell]]:
    """The cells of real ranks that were run, with the machine."""
    for result in real_results(results):
        for cell in result["cells"]:
            if runs_of(cell):
                yield result["machine"], cell


def runs_of(cell: Cell) -> str:
    """How often a cell of real ranks was run, in words; empty if it was not.

    Older ones have rounds, of a run of each policy.
    """
    for name in ("block", "round"):
        if count := cell.get(f"{name}s"):
            return f"{count} {name}{'s' * (count > 1)}"
    return ""


def mean_of(cell: Cell, policy: str, name: str) -> float:
    """A figure of real ranks, of which older cells have each run."""
    found = cell["policies"][policy][name]
    return geometric(found) if isinstance(found, list) else float(found)


def real_place(cell: Cell) -> str:
    """A cell of real ranks in words, by what differs from the first."""
    words = [cell["of"], load_name(cell["load"])]
    if cell["divided by"] > 1:
        sent = f"{cell['prompt']} → {cell['answer']}" if "prompt" in cell else "divided"
        words[0] += f", {sent}"
    words.append("asynchronous" if cell["asynchronous"] else "synchronous")
    if 2 * cell["dense_layers"] != cell["layers"]:
        dense = cell["dense_layers"] or "none"
        words.append(f"{dense} of {cell['layers']} layers dense")
    if cell["drafts"]:
        words.append(f"{cell['drafts']} drafts (ngram)")
    return "; ".join(words)


def _cell_key(cell: Cell) -> tuple[Any, ...]:
    names = "of", "load", "asynchronous", "drafts"
    dense = cell["dense_layers"] / cell["layers"]
    return dense, *(cell[name] for name in names)


CLOSE = 0.05
"""Of the time with `off`: a ratio that is predicted so well is right."""


def real(results: Results) -> Rows:
    """Times over `off` with their intervals, and as predicted."""
    policies = "cap", "align", "adaptive"
    rows: Rows = [["requests", "`off`, s", *(f"`{name}`" for name in policies)]]
    known, machine = list(measured(results)), ""
    for name_of, cell in known:
        if machine != name_of:
            rows.append([f"**{name_of}**", *("" for _ in rows[0][1:])])
            machine = name_of
        rows.append([real_place(cell), f"{mean_of(cell, 'off', MEAN) / 1e3:.1f}"])
        for name in policies:
            mean, low, high = cell["policies"][name]["ratio"]
            ends = f" ({low:.2f}–{high:.2f})" if low < high else ""
            said = f" / {cell['predicted'][name]:.2f}" if cell["predicted"] else ""
            rows[-1].append(f"{mean:.2f}{ends}{said}")
    run = {_cell_key(cell) for _, cell in known}
    for result in real_results(results)[:1]:
        for cell in result["cells"]:
            if _cell_key(cell) not in run:
                rows.append([real_place(cell), "not run", *("" for _ in policies)])
    told = [cell for _, cell in known if cell["predicted"]]
    close = (
        sum(
            abs(cell["policies"][name]["ratio"][0] - cell["predicted"][name]) <= CLOSE
            for cell in told
        )
        for name in policies
    )
    row = [f"predicted within {100 * CLOSE:.0f} points", ""]
    rows.append([*row, *(f"{each} of {len(told)}" for each in close)])
    return rows


def real_costs(results: Results) -> Rows:
    """What was learned in each cell that was run, and how long an exchange took."""
    parts = "decode", "own", "shared", "padding", "attention"
    rows: Rows = [["requests", *parts, "exchange"]]
    machine = ""
    for name, cell in measured(results):
        if machine != name:
            rows.append([f"**{name}**", *("" for _ in rows[0][1:])])
            machine = name
        learned = cell["learned_seconds"]
        costs = (f"{1e3 * learned[part]:.0f}" for part in parts)
        exchange = f"{cell['exchange_us'] / 1e3:.1f}"
        rows.append([real_place(cell), *costs, exchange])
    return rows


# ---- How it was made


MADE = "regimes", "barrier", "one_rank", "deployments", "published", "agents"


def made(results: Results) -> Rows:
    """What each result was made with."""
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
        barrier,
        first_tokens,
        one_rank,
        deployments,
        devices,
        published,
        baselines,
        agents,
        roles,
        real,
        real_costs,
        made,
    )
}


def markdown(rows: Rows) -> str:
    """A table; its first row is the head, and columns of numbers go to the right."""
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    line = "|".join(["---", *["--:"] * (len(rows[0]) - 1)])
    return "\n".join([head, f"|{line}|", *others])


def filled(page: str, results: Results) -> str:
    """The page with its tables made anew."""
    pattern = r"(<!-- table (\w+) -->\n).*?(<!-- end -->)"

    def table(found: re.Match[str]) -> str:
        try:
            rows = TABLES[found[2]](results)
        except KeyError:  # a result that was not made: the page says so
            rows = [["*not made yet*"]]
        return f"{found[1]}{markdown(rows)}\n{found[3]}"

    return re.sub(pattern, table, page, flags=re.S)


def fill(root: Path) -> None:
    """Fills the tables of the pages with what is in bench/results."""
    paths = (root / "bench" / "results").glob("*.json")
    results = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in paths}
    for name in PAGES:
        page = root / name
        page.write_text(filled(page.read_text(encoding="utf-8"), results), "utf-8")
