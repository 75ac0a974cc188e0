# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The report: a folder that can be shown to others.

It has no prompt, address, host or path, and the model's name only if asked for: what it
shows is numbers, and words that are listed here.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from ..cores import usable_cores
from ..simulator.results import FORMAT_VERSION, print_table, strict_json, versions
from . import picture
from .figures import FIGURES, JUDGED, KEPT, TTFT_TAIL, Measured, mean_latency
from .switchback import Switchback
from .verdict import Interval, earlier, sentence

Document = dict[str, Any]
WHOLE = TTFT_TAIL, KEPT
"""Figures of all requests alone: a stretch has too few."""


def write(folder: Path, found: Switchback, about: Mapping[str, object]) -> None:
    """Writes the report's files, and prints the table.

    Args:
        folder: of the trial.
        found: its stretches, of which two blocks or more have ended.
        about: what is known beside, without anything private.
    """
    judged = found.judged
    policies = _policies(found, judged)
    document: Document = {
        **{"format": "dp-balance trial", "format_version": FORMAT_VERSION},
        **{"date": date.today().isoformat(), "versions": versions(), **about},
        "cores": usable_cores(),
        "ranks": next(iter(found.scrapes.values())).ranks,
        "requests": len(judged.answers),
        "seconds": found.end - found.begin,
        "clients": judged.clients,
        "blocks": judged.blocks,
        "block_seconds": found.block_s,
        "stretch_seconds": _mean_stretch(judged),
        "washout_seconds": judged.washout,
        "answer_seconds": mean_latency(judged.answers),
        "limits": judged.limits._asdict(),
        "policies": policies,
        "carry_over": _ends(judged.carry_over()),
        "warnings": warnings(judged),
        "exchange_us": _exchange(found),
        "learned_seconds": _learned(found),
    }
    rows = table(document)
    for name, text in (
        ("report.json", strict_json(document)),
        ("report.md", page(document, rows)),
    ):
        (folder / "report" / name).write_text(text + "\n", encoding="utf-8")
    answers = [[a.request, a.prompt, a.output, a.digest] for a in judged.answers]
    (folder / "answers.json").write_text(json.dumps(answers), encoding="utf-8")
    print_table(rows)
    print("", *_verdicts(document), *document["warnings"], "", sep="\n")
    print(picture.draw(document, found.measured, folder / "report" / "trial.png"))
    print(f"Report, without prompts, addresses and paths: {folder / 'report'}")


def _mean_stretch(judged: Measured) -> float:
    return sum(s.end - s.begin for s in judged.stretches) / len(judged.stretches)


def _learned(found: Switchback) -> Mapping[str, float]:
    """What `adaptive` had learned when it served last, or another that learns."""
    mine = [s for p, s in found.scrapes.items() if p.startswith("adaptive")]
    return next((s.costs for s in [*mine, *found.scrapes.values()] if s.costs), {})


def _exchange(found: Switchback) -> float | None:
    known = [s.exchange_us for p, s in found.scrapes.items() if not p.startswith("off")]
    return max((each for each in known if each is not None), default=None)


def _ends(interval: Interval | None) -> Document | None:
    if interval is None or not math.isfinite(interval.half):
        return None
    mean, low, high = interval.ratios
    return {"mean": mean, "low": low, "high": high, "deviation": interval.deviation}


def _policies(found: Switchback, judged: Measured) -> dict[str, Document]:
    """Of each policy its figures; of all but the first ratios and a verdict."""
    base, *others = found.policies
    policies: dict[str, Document] = {
        policy: {"mean": judged.of(policy)} for policy in found.policies
    }
    for policy in others:
        latency = found.intervals()[policy]
        ratios = {JUDGED: _ends(latency)}
        for name in FIGURES:
            if name not in (JUDGED, *WHOLE):
                ratios[name] = _ends(judged.ratio(policy, base, name))
        policies[policy] |= {
            "ratios": {name: each for name, each in ratios.items() if each},
            "differs": latency.differs,
            "verdict": sentence(policy, base, latency, found.block_s),
        }
    return policies


LATE_S = 1.0


def warnings(judged: Measured) -> list[str]:
    """What makes the figures less than they seem."""
    found = []
    lasts, stretch = mean_latency(judged.answers), _mean_stretch(judged)
    if lasts > stretch / 2 + LATE_S:
        found.append(
            f"Answers take {lasts:.0f} s, too long for stretches of {stretch:.0f} s,"
            f" of which the first {judged.washout:.0f} s are left out: what one policy "
            "began is in the figures of the next, and differences look too small. Give "
            f"--stretch {math.ceil(3 * lasts)}."
        )
    carried = judged.carry_over()
    if carried is not None and carried.differs:
        mean, _, _ = carried.ratios
        found.append(
            f"Behind another policy requests end {earlier(mean)} than behind the same "
            "one, so that differences look too small: give a longer --stretch."
        )
    return found


def _verdicts(document: Document) -> list[str]:
    found = document["policies"].values()
    return [each["verdict"] for each in found if "verdict" in each]


def table(document: Document) -> list[list[str]]:
    """The figures side by side, with a head."""
    policies: Mapping[str, Document] = document["policies"]
    base, *others = policies
    rows = [["", *policies, *(f"{other} / {base}" for other in others)]]
    for name, (title, scale, form) in FIGURES.items():
        row = [form.format(scale * each["mean"][name]) for each in policies.values()]
        for other in others:
            cell, ratio = "", policies[other]["ratios"].get(name)
            if ratio is not None:
                cell = f"{ratio['mean']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})"
            row.append(cell)
        if name == KEPT:
            limits = document["limits"]
            ends = f"{1e3 * limits['ttft']:g} / {1e3 * limits['tpot']:g} ms"
            title = f"{title}, {ends}"
        rows.append([title, *row])
    return rows


def page(document: Document, rows: Sequence[Sequence[str]]) -> str:
    """report.md."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    device = [f"- {document['device'] or 'deployments'}; {document['cores']} cores"]
    device.append(f"- dispatch: {document['dispatch']}")
    if document["exchange_us"] is not None:
        device.append(
            f"- exchange: {document['exchange_us']:.0f} µs on the slowest rank"
        )
    if parts := document["learned_seconds"]:
        said = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in parts.items())
        device.append(f"- a step, as `adaptive` learned it: {said}")
    if "model" in document:
        device.append(f"- model: {document['model']}")
    carried = "cannot be told yet"
    if over := document["carry_over"]:
        low, high = (100 * (over[end] - 1) for end in ("low", "high"))
        carried = f"{100 * (over['mean'] - 1):+.1f} % ({low:+.1f} to {high:+.1f})"
    loop = "at the load's own times"
    if document["clients"]:
        loop = f"from {document['clients']} clients, one after the other"
    ran = ", ".join(f"{name} {text}" for name, text in document["versions"].items())
    return "\n".join(
        [
            "# A trial of data parallel balance scheduling\n",
            *(f"**{each}**\n" for each in _verdicts(document)),
            *(f"{each}\n" for each in document["warnings"]),
            f"{document['requests']} requests, {loop}; {document['ranks']} ranks; "
            f"{document['blocks']} blocks of {document['block_seconds']:.0f} s, in "
            "which each policy serves a stretch of "
            f"{document['stretch_seconds']:.0f} s in random order. The first "
            f"{document['washout_seconds']:.0f} s of each are left out. Intervals are "
            "of 95 % or more, over blocks.\n",
            *(head, "|---" + "|--:" * (len(rows[0]) - 1) + "|", *body),
            "\nHow long a request takes is judged: in a closed loop by the prompt and "
            "answer tokens per second (Little's law), else by the requests under way. "
            "First tokens and times between tokens count where they begin. Behind "
            f"another policy requests take longer than behind the same: {carried}.\n",
            "![Tokens per second, and the figures](trial.png)\n\n## The device\n",
            *device,
            f"\n## How\n\n`{document['command']}`\n",
            f"{document['date']}; {ran}.",
        ]
    )
