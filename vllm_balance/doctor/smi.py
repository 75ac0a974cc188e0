"""Reads the output of `npu-smi`, in each of its formats."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

Ask = Callable[..., tuple[str, str]]
"""Calls `npu-smi`; returns its output and, if it failed, the reason (else "")."""

VERSION = re.compile(r"^\|\s*npu-smi\s+\S+\s+Version:\s*(\S+)", re.M)
# `| 0     910B3 | OK |`, on Ascend 950 `| 0 | Ascend950PR | OK |`; a row of a process
# has a number where the name is. The next row has the bus, and ends with the memory.
CHIP = re.compile(
    r"^\|\s*(\d+)\s+\|?\s*(?=\S*[A-Za-z])(\S+)\s*\|\s*([A-Za-z]+)\s*\|.*\n"
    r"\|([\d\s]*)\|.*[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:.*\D(\d+)\s*/\s*(\d+)",
    re.M,
)
PROCESS = re.compile(
    r"^\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*(\d+)\s*\|\s*([^|]*?)\s*\|\s*(\d+)\s*\|", re.M
)
DEVICES = {
    r"ascend910b|(ascend)?a2g3": "A2",
    r"ascend910_93": "A3",
    r"ascend310p": "310P",
    r"ascend950": "A5",
}
"""The device that a wheel is for, by the beginning of the chip's SoC."""


class Npu(NamedTuple):
    number: int
    """The number of `/dev/davinci`."""
    card: int
    chip: int
    name: str
    health: str
    used_mb: int
    total_mb: int


class NpuProcess(NamedTuple):
    card: int
    chip: int
    pid: int
    name: str
    used_mb: int


@dataclass(frozen=True)
class Smi:
    problem: str = ""
    """Why there is no table, with its last line; else empty."""
    version: str = ""
    npus: tuple[Npu, ...] = ()
    processes: tuple[NpuProcess, ...] = ()
    board: dict[str, str] = field(default_factory=dict)
    """The entries of the first card's board, names in lower case."""

    @property
    def soc(self) -> str:
        """`ascend910b3`, `ascend910_9392`: composed as in the plugin's build."""
        chip = self.board.get("chip name", "").lower()
        name = self.board.get("npu name", "")
        if name and "310" not in chip:
            return f"{chip}_{name}".lower()
        return f"{self.board.get('chip type', '')}{chip}".lower()

    @property
    def device(self) -> str | None:
        """`A2`, `A3`, `310P`, `A5`; None for a chip that has no wheel."""
        return next((d for p, d in DEVICES.items() if re.match(p, self.soc)), None)


def ask(npu_smi: Ask) -> Smi:
    text, problem = npu_smi("info")
    smi = read(text)
    if not smi.npus and (problem or not smi.version):
        # Its library may print other lines before the error.
        last = "".join(text.strip().splitlines()[-1:]) or "says nothing"
        return Smi(f"{last} ({problem})" if text and problem else problem or last)
    for npu in smi.npus[:1]:
        board = ("info", "-t", "board", "-i", str(npu.card))
        smi.board.update(fields(npu_smi(*board)[0]))
        if "chip name" not in smi.board:
            smi.board.update(fields(npu_smi(*board, "-c", str(npu.chip))[0]))
    return smi


def read(text: str) -> Smi:
    version = VERSION.search(text)
    npus = []
    for card, name, health, cell, used, total in CHIP.findall(text):
        # The first cell is the chip, and on A3 the number of the device, too.
        numbers = [int(number) for number in cell.split()] or [0]
        number = numbers[1] if len(numbers) > 1 else int(card)
        position = (number, int(card), numbers[0])
        npus.append(Npu(*position, name, health, int(used), int(total)))
    processes = [
        NpuProcess(int(card), int(chip or 0), int(pid), name, int(used))
        for card, chip, pid, name, used in PROCESS.findall(text)
    ]
    return Smi("", version[1] if version else "", tuple(npus), tuple(processes))


def fields(text: str) -> dict[str, str]:
    """The lines `NAME : VALUE` or `NAME=VALUE` of a text, names in lower case."""
    pairs = re.findall(r"^\s*([^=:\n]*?)\s*[=:]\s*(.*?)\s*$", text, re.M)
    return {name.lower(): value for name, value in pairs}
