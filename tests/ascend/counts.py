"""Reads what the emulated device has counted (EMULATOR_COUNTS), step by step."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

PRODUCTS = "npu::npu_grouped_matmul"


@dataclass
class Step:
    """What one rank did in one step.

    Attributes:
        rank: which.
        tokens: that it had to compute; a rank without any computes one of no request.
        ranks: tokens of every rank, after the padding that they agreed on.
        idle: whether no request was scheduled on it.
        calls: operators and collectives, by name.
        sent: bytes that it sent to other ranks, by name.
        rows: (token, expert) rows that it computed, mean of the layers.
    """

    rank: int
    tokens: int
    ranks: tuple[int, ...]
    idle: bool
    calls: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    rows: float = 0


def versions(balance: str) -> dict[str, str]:
    """What a result was made with; `balance` is a hash of the policies, or `off`."""
    return {
        "vllm": version("vllm"),
        "python": platform.python_version(),
        "balance": balance,
    }


def read(folder: Path) -> list[list[Step]]:
    """The steps that all ranks made together: [steps][ranks].

    Raises:
        ValueError: the ranks do not fit together, or nothing was counted.
    """
    by_rank: dict[int, list[Step]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for step in steps(lines):
            by_rank.setdefault(step.rank, []).append(step)
    if sorted(by_rank) != list(range(len(by_rank))) or not by_rank:
        raise ValueError(f"{folder}: expected steps of ranks 0, 1, …, found {by_rank}")
    # A rank that was stopped in a step has not counted it to its end.
    made = (by_rank[rank] for rank in sorted(by_rank))
    together = [list(ranks) for ranks in zip(*made, strict=False)]
    for number, ranks in enumerate(together):
        if len({step.ranks for step in ranks}) > 1:
            raise ValueError(f"{folder}: step {number} is not the same one: {ranks}")
    return together[:-1]


def steps(lines: Sequence[dict[str, Any]]) -> Iterator[Step]:
    """The steps of one process, of those that all ranks make together."""
    current: Step | None = None
    begun: dict[str, Any] = {}
    for line in lines:
        match line["kind"]:
            case "step":
                begun = line
            case "loads":
                if current is not None:
                    yield finished(current)
                current = Step(
                    rank=begun["rank"],
                    tokens=line["tokens"],
                    ranks=tuple(line["ranks"]),
                    idle=begun["name"] == "_dummy_run",
                )
            case "hccl" if current is not None:
                current.calls[line["name"]] += 1
                current.sent[line["name"]] += sent(line)
            case "operator" if current is not None:
                current.calls[line["name"]] += 1
                if line["name"] == PRODUCTS:
                    current.rows += line["rows"]
    if current is not None:
        yield finished(current)


def finished(step: Step) -> Step:
    """With a mean instead of a sum."""
    step.rows /= step.calls[PRODUCTS] or 1
    return step


def sent(line: dict[str, Any]) -> float:
    """Bytes to other ranks, without the part that stays, of a counted collective.

    Of what is spread over the ranks evenly on the average: dispatch and the
    all-to-all of rows for experts count as if an equal part stayed.
    """
    ranks, given = line["ranks"], line["bytes"]
    if line["name"] == "all_gather":
        return float(given * (ranks - 1))
    if line["name"] == "all_reduce":
        return given * 2 * (ranks - 1) / ranks  # by reduce-scatter and all-gather
    return given * (ranks - 1) / ranks
