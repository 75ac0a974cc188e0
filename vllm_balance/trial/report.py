# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The report: a folder that can be shown to others.

It has no prompt, address, host or path, and the model's name only if asked for: what it
shows is numbers, and words that are listed here.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

from ..cores import usable_cores
from ..simulator.results import FORMAT_VERSION, print_table, strict_json, versions
from . import picture
from .figures import FIGURES, JUDGED, STEADY, figures_of
from .steps import (
    decode_seconds,
    prompt_seconds,
    read_steps,
    slowness,
    waiting_share,
)
from .turns import Folder, Result, Turn
from .verdict import Ratio, sentence

Document = dict[str, Any]


def write(
    folder: Folder,
    turns: Sequence[Turn],
    results: Sequence[Result],
    about: Mapping[str, object],
) -> None:
    """Writes the report's files, and prints the table.

    Args:
        folder: has the turns.
        turns: all of them.
        results: of the turns.
        about: what is known beside, without anything private.
    """
    all_steps = [read_steps(folder.file(turn, ".steps")) for turn in turns]
    names = (turn.policy for turn in turns)
    steps = dict(zip(names, all_steps, strict=True))  # of each policy's last turn
    figures = [result.figures for result in results if result.figures]
    decodes = decode_seconds(all_steps)
    prompts = prompt_seconds(all_steps, decodes)
    slower: dict[str, list[float | None]] = {turn.policy: [] for turn in turns}
    for turn, each in zip(turns, all_steps, strict=True):
        slower[turn.policy].append(slowness(each, decodes, prompts))
    exchange = [each.exchange_us for each in figures if each.exchange_us is not None]
    document: Document = {
        **{"format": "dp-balance trial", "format_version": FORMAT_VERSION},
        **{"date": date.today().isoformat(), "versions": versions(), **about},
        "cores": usable_cores(),
        "ranks": figures[0].ranks if figures else None,
        "requests": len(results[0].saved["start_times"]),
        "policies": _policies(turns, results),
        "exchange_us": statistics.fmean(exchange) if exchange else None,
        "learned_seconds": _learned([f.costs for f in figures if f.costs]),
        "decode_seconds": decodes,
        "prompt_seconds": prompts,
        "slowness": slower,
        "waiting_share": {p: waiting_share(each) for p, each in steps.items() if each},
    }
    rows = table(document)
    for name, text in (
        ("report.json", strict_json(document)),
        ("report.md", page(document, rows)),
    ):
        folder.write(folder.report / name, text + "\n")
    print_table(rows)
    print("", *_verdicts(document), "", sep="\n")
    print(picture.draw(document, steps, folder.report / "trial.png"))
    print(f"Report, without prompts, addresses and paths: {folder.report}")


def _learned(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of the turns, by part."""
    parts = costs[0] if costs else ()
    return {name: statistics.fmean(each[name] for each in costs) for name in parts}


def _policies(turns: Sequence[Turn], results: Sequence[Result]) -> dict[str, Document]:
    """Of each policy the figures by round; of all but the base ratios and verdict."""
    runs: dict[str, dict[int, Mapping[str, float]]] = {}
    for turn, result in zip(turns, results, strict=True):
        runs.setdefault(turn.policy, {})[turn.round] = figures_of(result.saved)
    columns = {
        policy: {name: [mine[n][name] for n in sorted(mine)] for name in FIGURES}
        for policy, mine in runs.items()
    }
    base, *others = columns
    found: dict[str, Document] = {
        policy: {"runs": mine, "mean": {n: statistics.fmean(mine[n]) for n in mine}}
        for policy, mine in columns.items()
    }
    for policy in others:
        pairs = {n: Ratio.of(columns[policy][n], columns[base][n]) for n in FIGURES}
        ratios = {name: ratio for name, ratio in pairs.items() if ratio is not None}
        found[policy] |= {
            "ratios": {name: asdict(ratio) for name, ratio in ratios.items()},
            "differs": ratios[JUDGED].differs,
            "verdict": sentence(policy, base, ratios[JUDGED], ratios.get(STEADY)),
        }
    return found


def _verdicts(document: Document) -> list[str]:
    found = document["policies"].values()
    return [each["verdict"] for each in found if "verdict" in each]


def table(document: Document) -> list[list[str]]:
    """The figures side by side, with a head."""
    policies: Mapping[str, Document] = document["policies"]
    base, *others = policies
    rows = [["", *policies, *(f"{name}/{base}" for name in others)]]
    for name in policies[base]["mean"]:
        if not any(each["mean"][name] for each in policies.values()):
            continue  # all requests were sent at once: nothing was steady
        title, scale, form = FIGURES[name]
        row = [form.format(scale * each["mean"][name]) for each in policies.values()]
        for other in others:
            cell, ratio = "", policies[other]["ratios"].get(name)
            if ratio is not None:
                cell = f"{ratio['mean']:.2f}"
            if ratio is not None and ratio["rounds"] > 1:
                cell += f" ({ratio['low']:.2f}–{ratio['high']:.2f})"
            row.append(cell)
        rows.append([title, *row])
    if waits := document["waiting_share"]:
        said = {p: "unknown" if x is None else f"{x:.0%}" for p, x in waits.items()}
        shares = [said.get(name, "") for name in policies]
        rows.append(["ranks wait for the slowest", *shares, *("" for _ in others)])
    known = {p: [x for x in found if x] for p, found in document["slowness"].items()}
    if any(known.values()):
        means = [f"{statistics.fmean(x):.2f}" if x else "" for x in known.values()]
        rows.append(["steps with the same tokens", *means, *("" for _ in others)])
    return rows


def page(document: Document, rows: Sequence[Sequence[str]]) -> str:
    """report.md."""
    rounds = len(document["policies"][rows[0][1]]["runs"][JUDGED])
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    device = [f"- {document['device'] or 'deployments'}; {document['cores']} cores"]
    if document["exchange_us"] is not None:
        device.append(
            f"- exchange: {document['exchange_us']:.0f} µs on the slowest rank"
        )
    if parts := document["learned_seconds"]:
        said = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in parts.items())
        device.append(f"- a step, as `adaptive` learned it: {said}")
    if decodes := document["decode_seconds"]:
        device.append(
            f"- a step that only decodes: {1e3 * decodes['alone']:.3g} ms, and "
            f"{1e3 * decodes['each']:.3g} ms for each token of the fullest rank"
        )
    if prompts := document["prompt_seconds"]:
        device.append(
            f"- prompts add {1e3 * prompts['fixed']:.3g} ms, and for 1,000 tokens of "
            f"the fullest rank {1e6 * prompts['own']:.3g} ms, of the mean rank "
            f"{1e6 * prompts['shared']:.3g} ms"
        )
    if "model" in document:
        device.append(f"- model: {document['model']}")
    ran = ", ".join(f"{name} {text}" for name, text in document["versions"].items())
    return "\n".join(
        [
            "# A trial of data parallel balance scheduling\n",
            *(f"**{verdict}**\n" for verdict in _verdicts(document)),
            f"{document['requests']} requests, {document['ranks']} ranks, "
            f"{rounds} turn(s) of each policy. Ratios have the range of the rounds.\n",
            *(head, "|---" + "|--:" * (len(rows[0]) - 1) + "|", *body),
            "\n![What the ranks did, and the figures](trial.png)\n\n## The device\n",
            *device,
            f"\n## How\n\n`{document['command']}`\n",
            f"{document['date']}; {ran}.",
        ]
    )
