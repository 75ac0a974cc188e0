# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The report: a folder that can be shown to others.

It has no prompt, address, host or path, and the model's name only if asked for: what it
shows is numbers, and words that are listed here.
"""

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..calibrate import UNITS
from ..metrics import Metrics
from ..results import FORMAT_VERSION, versions
from . import device, picture
from .figures import STEADY
from .load import Load
from .plan import Plan
from .steps import read_steps, waiting_share
from .turns import Folder, Result, Turn
from .verdict import JUDGED, Ratio, sentence

FIGURES = {
    STEADY: ("output tokens per second", 1.0, "{:.0f}"),
    "output_throughput": ("the same, to the last answer", 1.0, "{:.0f}"),
    "mean_e2el_ms": ("seconds a request takes, mean", 1e-3, "{:.2f}"),
    "mean_tpot_ms": ("ms between tokens, mean (TPOT)", 1.0, "{:.1f}"),
    "p99_itl_ms": ("ms between tokens, p99 (ITL)", 1.0, "{:.0f}"),
    "median_ttft_ms": ("seconds to first token, median", 1e-3, "{:.2f}"),
    "p99_ttft_ms": ("seconds to first token, p99", 1e-3, "{:.2f}"),
    "computed_share": ("share of prompt tokens computed", 1.0, "{:.2f}"),
}
"""Title, scale and format."""
SIMULATED = {name for name in FIGURES if name not in ("computed_share", "p99_itl_ms")}
PACKAGES = ("vllm", "vllm-ascend", "torch", "torch-npu")
Document = dict[str, Any]


def write(
    folder: Folder,
    turns: Sequence[Turn],
    results: Sequence[Result],
    load: Load,
    plan: Plan,
    about: Mapping[str, object],
    model: str | None,
) -> None:
    """Writes report.json, report.md and trial.png, and prints the table.

    Args:
        folder: has the turns.
        turns: all of them.
        results: of the turns.
        load: was sent.
        plan: of the command.
        about: what is known beside, without anything private.
        model: its name, to be shown; None for no name.
    """
    found = device.constants(folder, turns, plan)
    simulated = device.forecast(folder, turns, results, load, plan, found)
    cost = None if isinstance(found, str) else found.cost
    steps = {
        turn.policy: read_steps((folder.turns / turn.name).with_suffix(".steps"), cost)
        for turn in reversed(turns)
    }
    document: Document = {
        **_headed("trial"),
        **about,
        **_surroundings(plan),
        "ranks": plan.ranks or len(results[0].counters["vllm:generation_tokens_total"]),
        "slots": plan.slots,
        "requests": int(results[0].figures["requests"]),
        "policies": _policies(turns, results, simulated),
        "device": {
            "exchange_us": device.exchange_us(results),
            "learned_seconds": device.learned(results),
            "waiting_share": {
                policy: waiting_share(each) for policy, each in steps.items() if each
            },
            "fit": found if isinstance(found, str) else asdict(found),
        },
        "forecast": simulated if isinstance(simulated, str) else "",
    }
    if model is not None:
        document["model"] = model
    folder.write(folder.report / "report.json", document)
    folder.write(folder.report / "report.md", text(document))
    if not isinstance(found, str):
        parts = {"versions": versions(), "fit": asdict(found)}
        calibration = _headed("calibrate") | parts
        folder.write(folder.report / "calibration.json", calibration)
    why = picture.draw(document, steps, folder.report / "trial.png")
    print("\n".join([*table(document), "", *verdicts(document), ""]))
    print(why or f"Picture: {folder.report / 'trial.png'}")
    print(f"Report, without prompts, addresses and paths: {folder.report}")


def _headed(kind: str) -> Document:
    """The beginning of a file that `results.read_json` reads."""
    return {"format": f"dp-balance {kind}", "format_version": FORMAT_VERSION}


def _surroundings(plan: Plan) -> Document:
    """What the trial ran on, and with."""
    return {
        "date": date.today().isoformat(),
        "versions": versions() | _packages(),
        "cores": os.cpu_count(),
        "devices": list(plan.devices),
        "npus_per_rank": plan.npus_per_rank,
        "doctor": [list(line) for line in plan.doctor],
    }


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _policies(
    turns: Sequence[Turn],
    results: Sequence[Result],
    simulated: "device.Forecast | str",
) -> dict[str, Document]:
    """Of each policy the runs by round, ratios to the base, forecasts and verdict."""
    runs: dict[str, list[Mapping[str, float]]] = {}
    for turn, result in sorted(zip(turns, results, strict=True), key=_round):
        figures = {**result.figures, **_computed(result)}
        runs.setdefault(turn.policy, []).append(figures)
    base = turns[0].policy
    found: dict[str, Document] = {}
    for policy in dict.fromkeys(turn.policy for turn in turns):
        mine = found[policy] = {"runs": runs[policy], "mean": _means(runs[policy])}
        if policy == base:
            continue
        ratios = {}
        for name in FIGURES:
            if name in mine["mean"] and name in runs[base][0]:
                ratio = Ratio.of(_column(runs[policy], name), _column(runs[base], name))
                if ratio is not None:
                    ratios[name] = ratio
        mine["ratios"] = {
            name: {**asdict(ratio), "interval": ratio.interval}
            for name, ratio in ratios.items()
        }
        judged = ratios[JUDGED]
        mine["differs"] = judged.differs
        mine["verdict"] = sentence(policy, base, judged, ratios.get(STEADY))
        if not isinstance(simulated, str):
            mine["forecast"] = _forecast(simulated[policy], simulated[base])
    return found


def _forecast(mine: Sequence[Metrics], base: Sequence[Metrics]) -> dict[str, float]:
    """Ratios of what was simulated."""
    found = {}
    for name in SIMULATED:
        pairs = [
            (getattr(a, name), getattr(b, name))
            for a, b in zip(mine, base, strict=True)
        ]
        if all(math.isfinite(a) and b > 0 for a, b in pairs):
            found[name] = statistics.fmean(a / b for a, b in pairs)
    return found


def _round(pair: tuple[Turn, Result]) -> int:
    return pair[0].round


def _column(runs: Sequence[Mapping[str, float]], name: str) -> list[float]:
    return [run[name] for run in runs]


def _means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {n: statistics.fmean(_column(runs, n)) for n in FIGURES if n in runs[0]}


def _computed(result: Result) -> dict[str, float]:
    """The share of the prompt tokens that no KV cache had, with prefix caching."""
    queries, hits = (
        sum(result.counters.get(f"vllm:prefix_cache_{what}_total", {}).values())
        for what in ("queries", "hits")
    )
    return {"computed_share": 1 - hits / queries} if queries else {}


def table(document: Document) -> list[str]:
    """The figures side by side, as Markdown, which a terminal shows as well."""
    policies: Mapping[str, Document] = document["policies"]
    others = list(policies)[1:]
    head = ["", *policies, *(f"{name}: ratio" for name in others)]
    rows = [head]
    for name, (title, scale, form) in FIGURES.items():
        if any(name not in each["mean"] for each in policies.values()):
            continue
        row = [title]
        row += [form.format(scale * each["mean"][name]) for each in policies.values()]
        for other in others:
            ratio = policies[other]["ratios"].get(name)
            row.append(_cell(ratio, policies[other].get("forecast", {}).get(name)))
        rows.append(row)
    if waits := document["device"]["waiting_share"]:
        shares = [f"{waits[name]:.0%}" if name in waits else "" for name in policies]
        rows.append(["ranks wait for the slowest", *shares, *("" for _ in others)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    return [
        f"| {' | '.join(c.ljust(w) for c, w in zip(row, widths, strict=True))} |"
        for row in rows
    ]


def _cell(ratio: Document | None, predicted: float | None) -> str:
    if ratio is None:
        return ""
    shown = f"{ratio['mean']:.2f}"
    if ratio["rounds"] > 1:
        shown += f" ({ratio['low']:.2f}–{ratio['high']:.2f})"
    return shown if predicted is None else f"{shown}, forecast {predicted:.2f}"


def verdicts(document: Document) -> list[str]:
    """A sentence for each policy but the base."""
    found = document["policies"].values()
    return [each["verdict"] for each in found if "verdict" in each]


def text(document: Document) -> str:
    """report.md."""
    of_device = document["device"]
    versions_ = ", ".join(f"{k} {v}" for k, v in document["versions"].items())
    states = [state for _, state in document["doctor"]]
    bad = [what for what, state in document["doctor"] if state in ("warn", "bad")]
    rounds = len(next(iter(document["policies"].values()))["runs"])
    lines = [
        "# A trial of data parallel balance scheduling",
        "",
        *(f"**{verdict}**" for verdict in verdicts(document)),
        "",
        f"{document['requests']} requests to {document['ranks']} ranks, "
        f"{rounds} turn(s) of each policy. Ratios are means of the rounds, with their "
        "range, and as the simulator forecasts them.",
        "",
        *table(document),
        "",
        "![What the ranks did, and the figures](trial.png)",
        "",
        "## The device",
        "",
        *_fit_lines(of_device["fit"]),
    ]
    if (exchange := of_device["exchange_us"]) is not None:
        lines.append(f"- An exchange takes {exchange:.0f} µs on the slowest rank.")
    if parts := of_device["learned_seconds"]:
        said = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in parts.items())
        lines.append(f"- `adaptive` has learned: {said}.")
    if document["forecast"]:
        lines.append(f"- No forecast: {document['forecast']}.")
    devices = ", ".join(dict.fromkeys(document["devices"])) or "none that are listed"
    lines += [
        "",
        "## How",
        "",
        f"- `{document['command']}`",
        f"- {document['date']}; {versions_}; {document['cores']} cores; devices: "
        f"{devices}.",
    ]
    if "model" in document:
        lines.append(f"- Model: {document['model']}.")
    if states:
        counts = ", ".join(
            f"{states.count(s)} {s}" for s in ("ok", "unknown", "warn", "bad")
        )
        named = f" (not ok: {', '.join(bad)})" if bad else ""
        lines.append(f"- `vllm-balance doctor`: {counts}{named}.")
    return "\n".join(lines) + "\n"


def _fit_lines(found: Document | str) -> list[str]:
    if isinstance(found, str):
        return [f"- The cost of a step is not known: {found}."]
    lines = ["| constant | value | ± | |", "|---|--:|--:|---|"]
    for name, meaning, factor, unit in UNITS:
        value, width = found[name]["value"], found[name]["half_width"]
        lines.append(
            f"| {name} | {value * factor:.4g} {unit} | {width * factor:.2g} | "
            f"{found[name]['note'] or meaning} |"
        )
    return [
        *lines,
        "",
        f"- {found['steps']} steps; residual {found['residual']:.1%} of the mean step; "
        f"{found['host_seconds'] * 1e3:.3g} ms of the host between steps.",
    ]
