# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The report: a folder that can be shown to others.

It has no prompt, address, host or path, and the model's name only with `--show-model`.
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
from .figures import FIGURES, JUDGED, TTFT_TAIL, WITHIN_LIMITS, Measured, mean_latency
from .switchback import TOO_SHORT, Switchback, stretch_for
from .verdict import Interval, earlier, sentence

Document = dict[str, Any]
NOT_PER_STRETCH = TTFT_TAIL, WITHIN_LIMITS
"""Figures without an interval, because a stretch has too few requests for them."""


def write(folder: Path, switchback: Switchback, about: Mapping[str, object]) -> None:
    """Writes the report's files, and prints the table.

    Args:
        folder: of the trial.
        switchback: the stretches of the trial; two blocks or more have ended.
        about: further keys of report.json, whose values are not private.
    """
    judged = switchback.judged
    policies = _policies(switchback, judged)
    document: Document = {
        **{"format": "dp-balance trial", "format_version": FORMAT_VERSION},
        **{"date": date.today().isoformat(), "versions": versions(), **about},
        "cores": usable_cores(),
        "ranks": next(iter(switchback.scrapes.values())).ranks,
        "requests": len(judged.answers),
        "seconds": switchback.end - switchback.begin,
        "clients": judged.clients,
        "blocks": judged.blocks,
        "block_seconds": switchback.block_s,
        "stretch_seconds": _mean_stretch(judged),
        "washout_seconds": judged.washout,
        "answer_seconds": mean_latency(judged.answers),
        "limits": judged.limits._asdict(),
        "policies": policies,
        "stretches": [
            {"block": stretch.block, "policy": stretch.policy, **figures}
            for stretch, figures in zip(judged.stretches, judged.figures, strict=True)
        ],
        "carry_over": _ends(judged.carry_over()),
        "warnings": warnings(judged),
        "exchange_us": _exchange(switchback),
        "learned_seconds": _learned(switchback),
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
    print(picture.draw(document, switchback.measured, folder / "report" / "trial.png"))
    print(f"Report, without prompts, addresses and paths: {folder / 'report'}")


def _mean_stretch(judged: Measured) -> float:
    return sum(s.end - s.begin for s in judged.stretches) / len(judged.stretches)


def _learned(switchback: Switchback) -> Mapping[str, float]:
    """The step times that `adaptive` learned last, or else another policy."""
    scrapes = switchback.scrapes
    of_adaptive = [s for p, s in scrapes.items() if p.startswith("adaptive")]
    return next((s.costs for s in [*of_adaptive, *scrapes.values()] if s.costs), {})


def _exchange(switchback: Switchback) -> float | None:
    scrapes = switchback.scrapes.items()
    times_us = [s.exchange_us for p, s in scrapes if not p.startswith("off")]
    return max((t for t in times_us if t is not None), default=None)


def _ends(interval: Interval | None) -> Document | None:
    if interval is None or not math.isfinite(interval.half):
        return None
    mean, low, high = interval.ratios
    return {"mean": mean, "low": low, "high": high, "deviation": interval.deviation}


def _policies(switchback: Switchback, judged: Measured) -> dict[str, Document]:
    """Each policy's figures; for all but the first also ratios and a verdict."""
    base, *others = switchback.policies
    policies: dict[str, Document] = {
        policy: {"mean": judged.of(policy)} for policy in switchback.policies
    }
    for policy in others:
        latency = switchback.intervals()[policy]
        ratios = {JUDGED: _ends(latency)}
        for name in FIGURES:
            if name not in (JUDGED, *NOT_PER_STRETCH):
                ratios[name] = _ends(judged.ratio(policy, base, name))
        policies[policy] |= {
            "ratios": {name: ratio for name, ratio in ratios.items() if ratio},
            "differs": latency.differs,
            "verdict": sentence(policy, base, latency, switchback.block_s),
        }
    return policies


def warnings(judged: Measured) -> list[str]:
    """Why differences between the policies may look too small."""
    texts = []
    latency, stretch = mean_latency(judged.answers), _mean_stretch(judged)
    needed = stretch_for(latency, judged.clients)
    if needed > TOO_SHORT * stretch:
        texts.append(
            f"Stretches of {stretch:.0f} s, of which the first {judged.washout:.0f} s "
            f"are left out, are too short for requests that take {latency:.0f} s and "
            f"come {'one after another' if judged.clients else 'at their own times'}, "
            f"so that differences look too small. Give --stretch {math.ceil(needed)}."
        )
    carried = judged.carry_over()
    if carried is not None and carried.differs:
        mean, _, _ = carried.ratios
        texts.append(
            f"Behind another policy requests end {earlier(mean)} than behind the same "
            "one, so that differences look too small: give a longer --stretch."
        )
    return texts


def _verdicts(document: Document) -> list[str]:
    policies = document["policies"].values()
    return [policy["verdict"] for policy in policies if "verdict" in policy]


def table(document: Document) -> list[list[str]]:
    """The rows of the table of figures, a column for each policy and ratio."""
    policies: Mapping[str, Document] = document["policies"]
    base, *others = policies
    rows = [["", *policies, *(f"{other} / {base}" for other in others)]]
    for name, (title, scale, form) in FIGURES.items():
        row = [form.format(scale * p["mean"][name]) for p in policies.values()]
        for other in others:
            cell, ratio = "", policies[other]["ratios"].get(name)
            if ratio is not None:
                cell = f"{ratio['mean']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})"
            row.append(cell)
        if name == WITHIN_LIMITS:
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
        costs = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in parts.items())
        device.append(f"- a step, as `adaptive` learned it: {costs}")
    if "model" in document:
        device.append(f"- model: {document['model']}")
    carried = "cannot be told yet"
    if ratio := document["carry_over"]:
        low, high = (100 * (ratio[end] - 1) for end in ("low", "high"))
        carried = f"{100 * (ratio['mean'] - 1):+.1f} % ({low:+.1f} to {high:+.1f})"
    loop = "at the load's own times"
    if document["clients"]:
        loop = f"from {document['clients']} clients, one after the other"
    ran = ", ".join(f"{name} {text}" for name, text in document["versions"].items())
    return "\n".join(
        [
            "# A trial of data parallel balance scheduling\n",
            *(f"**{line}**\n" for line in _verdicts(document)),
            *(f"{line}\n" for line in document["warnings"]),
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
