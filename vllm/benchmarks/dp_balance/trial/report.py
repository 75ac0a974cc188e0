# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The report: a folder that can be shown to others.

It has no prompt, address, host or path, and the model's name only if asked for: what it
shows is numbers, and words that are listed here.
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

from ..calibrate import UNITS
from ..results import FORMAT_VERSION, print_table, strict_json, versions
from . import picture
from .device import constants, exchange_us, forecast
from .endpoint import HITS, QUERIES
from .figures import FIGURES, JUDGED, STEADY, figures_of
from .load import Load
from .plan import Plan
from .steps import read_steps, waiting_share
from .turns import Folder, Result, Turn
from .verdict import Ratio, sentence

Document = dict[str, Any]


def write(
    folder: Folder,
    turns: Sequence[Turn],
    results: Sequence[Result],
    load: Load,
    plan: Plan,
    about: Mapping[str, object],
) -> None:
    """Writes the report's files, and prints the table.

    Args:
        folder: has the turns.
        turns: all of them.
        results: of the turns.
        load: was sent.
        plan: of the command.
        about: what is known beside, without anything private.
    """
    found, hosts = constants(folder, turns, plan)
    simulated = forecast(folder, turns, results, load, plan, found, hosts)
    cost = None if isinstance(found, str) else found.cost
    steps = {t.policy: read_steps(folder.file(t, ".steps"), cost) for t in turns}
    learned = [result.costs for result in results if result.costs]
    policies = _policies(turns, results)
    document: Document = {
        **{"format": "dp-balance trial", "format_version": FORMAT_VERSION},
        **{"date": date.today().isoformat(), "versions": versions(), **about},
        **{"cores": os.cpu_count(), "doctor": plan.doctor, "devices": plan.devices},
        **{"ranks": plan.ranks, "slots": plan.slots},
        "requests": len(results[0].saved["start_times"]),
        "policies": policies,
        "forecast": simulated,
        "fit": found if isinstance(found, str) else asdict(found),
        "host_seconds": hosts,
        "exchange_us": exchange_us(results),
        "learned_seconds": learned[-1] if learned else {},
        # Without a cost it is not known when a rank had computed its part.
        "waiting_share": {
            p: waiting_share(each) for p, each in steps.items() if each and cost
        },
    }
    rows = table(document)
    files = {"report.json": document}
    if not isinstance(found, str):
        head = {"format": "dp-balance calibrate", "format_version": FORMAT_VERSION}
        files["calibration.json"] = {**head, "fit": document["fit"]}
    for name, content in files.items():
        folder.write(folder.report / name, strict_json(content) + "\n")
    folder.write(folder.report / "report.md", page(document, rows) + "\n")
    print_table(rows)
    print("", *_verdicts(document), "", sep="\n")
    print(picture.draw(document, steps, folder.report / "trial.png"))
    print(f"Report, without prompts, addresses and paths: {folder.report}")


def _policies(turns: Sequence[Turn], results: Sequence[Result]) -> dict[str, Document]:
    """Of each policy the figures by round; of all but the base ratios and verdict."""
    runs: dict[str, dict[int, Mapping[str, float]]] = {}
    for turn, result in zip(turns, results, strict=True):
        figures = figures_of(result.saved)
        if queries := sum(result.counters[QUERIES].values()):
            hits = sum(result.counters[HITS].values())
            figures["computed_share"] = 1 - hits / queries
        runs.setdefault(turn.policy, {})[turn.round] = figures
    names = [name for name in FIGURES if all(name in r[0] for r in runs.values())]
    columns = {
        policy: {name: [mine[n][name] for n in sorted(mine)] for name in names}
        for policy, mine in runs.items()
    }
    base, *others = columns
    found: dict[str, Document] = {
        policy: {"runs": mine, "mean": {n: statistics.fmean(mine[n]) for n in mine}}
        for policy, mine in columns.items()
    }
    for policy in others:
        pairs = {n: Ratio.of(columns[policy][n], columns[base][n]) for n in names}
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
            predicted = document["forecast"]
            if not isinstance(predicted, str) and name in predicted[other]:
                cell += f", forecast {predicted[other][name]:.2f}"
            row.append(cell)
        rows.append([title, *row])
    if waits := document["waiting_share"]:
        shares = [f"{waits[name]:.0%}" if name in waits else "" for name in policies]
        rows.append(["ranks wait for the slowest", *shares, *("" for _ in others)])
    return rows


def page(document: Document, rows: Sequence[Sequence[str]]) -> str:
    """report.md."""
    rounds = len(document["policies"][rows[0][1]]["runs"][JUDGED])
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    device = []
    if isinstance(fitted := document["fit"], str):
        device.append(f"- The cost of a step is not known: {fitted}.")
    else:
        hosts = document["host_seconds"].items()
        host = ", ".join(f"{1e3 * s:.3g} ms with {policy}" for policy, s in hosts)
        device.append(f"- the host between two steps: {host}")
        device.append(f"- {fitted['steps']} steps:")
        for name, meaning, factor, unit in UNITS:
            value, width = (factor * fitted[name][x] for x in ("value", "half_width"))
            text = fitted[name]["note"] or meaning
            device.append(f"- {name} = {value:.4g} ± {width:.2g} {unit}: {text}")
    if document["exchange_us"] is not None:
        device.append(
            f"- exchange: {document['exchange_us']:.0f} µs on the slowest rank"
        )
    if parts := document["learned_seconds"]:
        said = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in parts.items())
        device.append(f"- learned by `adaptive`: {said}")
    if isinstance(document["forecast"], str):
        device.append(f"- no forecast: {document['forecast']}")
    ran = ", ".join(f"{name} {text}" for name, text in document["versions"].items())
    chips = ", ".join(dict.fromkeys(document["devices"])) or "none listed"
    states = ", ".join(f"{what}: {state}" for what, state in document["doctor"])
    return "\n".join(
        [
            "# A trial of data parallel balance scheduling\n",
            *(f"**{verdict}**\n" for verdict in _verdicts(document)),
            f"{document['requests']} requests, {document['ranks'] or '?'} ranks, "
            f"{rounds} turn(s) of each policy. Ratios have the range of the rounds.\n",
            *(head, "|---" + "|--:" * (len(rows[0]) - 1) + "|", *body),
            "\n![What the ranks did, and the figures](trial.png)\n\n## The device\n",
            *device,
            f"\n## How\n\n`{document['command']}`\n",
            f"- {document['date']}; {ran}; {document['cores']} cores; devices: {chips}",
            *([f"- model: {document['model']}"] if "model" in document else []),
            f"- doctor: {states or 'did not look at the deployments'}",
        ]
    )
