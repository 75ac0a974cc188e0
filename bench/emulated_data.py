# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The rows of the tables of what was counted on emulated NPUs."""

from collections.abc import Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]
Step = Mapping[str, Any]
Rows = list[list[str]]


def shares(document: Document) -> Rows:
    """For each way to communicate, phi of what is counted.

    phi is the share of a prefill's work that all ranks bear together: with N ranks, one
    rank's prompt then costs 1 - phi (N - 1) / N of what a prompt on each rank costs.
    """
    rows = []
    for mode, steps in document["modes"].items():
        alone, together = one_and_all(steps)
        idle = steps[0]
        row = [mode, f"{max(alone['loads'])}"]
        for name in ("padded", "rows", "sent"):
            base, one, all_ = (max(step[name]) for step in (idle, alone, together))
            ranks = document["ranks"]
            phi = (1 - (one - base) / (all_ - base)) * ranks / (ranks - 1)
            row.append(f"{phi:.2f}")
        rows.append(row)
    return rows


def one_and_all(steps: Sequence[Step]) -> tuple[Step, Step]:
    """The steps of the longest prompt that one rank, and that all ranks have computed.

    Raises:
        ValueError: there is none that both have.
    """
    decodes = min(min(step["loads"]) for step in steps)
    by_loads = {tuple(step["loads"]): step for step in steps}
    for most in sorted({max(loads) for loads in by_loads}, reverse=True):
        for loads, step in by_loads.items():
            ranks = len(loads)
            alone = sorted(loads) == [*[decodes] * (ranks - 1), most]
            if alone and most > decodes and (most,) * ranks in by_loads:
                return step, by_loads[(most,) * ranks]
    raise ValueError("no prompt was computed both by one rank and by all at once")


def counted(document: Document) -> Rows:
    """What each rank did in the steps that `shares` compares."""
    rows = []
    for mode, steps in document["modes"].items():
        for step in (steps[0], *one_and_all(steps)):
            rows.append(
                [
                    mode,
                    each(step["loads"]),
                    each(step["gated"]),
                    each(step["rows"]),
                    each(sent / 1024 for sent in step["sent"]),
                    ", ".join(f"{n} {name}" for name, n in step["collectives"].items()),
                ]
            )
    return rows


def peers(document: Document) -> Rows:
    """What each system did, and what its clients got."""
    return [
        [
            name,
            of["schedulers"][0],
            f"{of['asked']}",
            f"{of['held']}",
            *(
                "–" if of[key] is None else f"{of[key]}"
                for key in ("gathered", "like_cap")
            ),
            f"{of['output_tokens_per_s']:.1f}",
            f"{of['mean_ttft_s']:.2f}",
            f"{1000 * of['mean_tpot_s']:.0f}",
            f"{of['mean_e2e_s']:.1f}",
            f"{of['load']:.1f}",
        ]
        for name, of in document["systems"].items()
    ]


def each(numbers: Any) -> str:
    """One number for each rank."""
    return " / ".join(f"{number:.0f}" for number in numbers)
