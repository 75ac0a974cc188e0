"""Reads `npu-smi`, in each of the forms that its versions print."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

Ask = Callable[..., tuple[str, str]]
"""Arguments of `npu-smi` to its output, and to why there is none (else empty)."""

VERSION = re.compile(r"^\|\s*npu-smi\s+\S+\s+Version:\s*(\S+)", re.M)
# `| 0     910B3 | OK |`, on Ascend 950 `| 0 | Ascend950PR | OK |`; a row of a process
# has a number where the name is.
NAME_ROW = re.compile(
    r"^\|\s*(\d+)\s+\|?\s*(?=\S*[A-Za-z])(\S+)\s*\|\s*([A-Za-z]+)\s*\|"
)
BUS = re.compile(r"\b[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d\b")
MEMORY = re.compile(r"(\d+)\s*/\s*(\d+)")
PROCESS_ROW = re.compile(
    r"^\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*(\d+)\s*\|\s*([^|]*?)\s*\|\s*(\d+)\s*\|"
)
DEVICES = {
    r"ascend910b|(ascend)?a2g3": "A2",
    r"ascend910_93": "A3",
    r"ascend310p": "310P",
    r"ascend950": "A5",
}
"""What the SoC of a chip begins with, to the device that a wheel is for."""


@dataclass(frozen=True)
class Npu:
    """One chip."""

    number: int
    """That of `/dev/davinci`."""
    card: int
    chip: int
    name: str
    health: str
    used_mb: int
    total_mb: int


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a chip."""

    card: int
    chip: int
    pid: int
    name: str
    used_mb: int


@dataclass(frozen=True)
class Smi:
    """All that was said."""

    problem: str = ""
    """Why nothing was; else empty."""
    version: str = ""
    """Of the driver."""
    npus: tuple[Npu, ...] = ()
    processes: tuple[Process, ...] = ()
    board: dict[str, str] = field(default_factory=dict)
    """Of the first card, names in lower case."""

    @property
    def soc(self) -> str:
        """`ascend910b3`, `ascend910_9392`; put together as the plugin's build does."""
        chip = self.board.get("chip name", "").lower()
        name = self.board.get("npu name", "")
        if name and "310" not in chip:
            return f"{chip}_{name}".lower()
        return f"{self.board.get('chip type', '')}{chip}".lower()

    @property
    def device(self) -> str | None:
        """`A2`, `A3`, `310P`, `A5`; None for a chip that has no wheel."""
        return next((d for p, d in DEVICES.items() if re.match(p, self.soc)), None)


def ask(said: Ask) -> Smi:
    """Ask for the table, and for the board of the first card."""
    text, problem = said("info")
    if problem:
        return Smi(problem=problem)
    smi = read(text)
    board: dict[str, str] = {}
    if smi.npus:
        card = str(smi.npus[0].card)
        for more in ((), ("-c", str(smi.npus[0].chip))):
            said_of_board, _ = said("info", "-t", "board", "-i", card, *more)
            board |= fields(said_of_board)
            if board.get("chip name"):
                break
    return Smi("", smi.version, smi.npus, smi.processes, board)


def read(text: str) -> Smi:
    """The table of `npu-smi info`, of any version."""
    version = VERSION.search(text)
    npus: list[Npu] = []
    processes: list[Process] = []
    begun: re.Match[str] | None = None
    for line in text.splitlines():
        if found := NAME_ROW.match(line):
            begun = found
        elif begun and BUS.search(line):
            # The first cell is the chip, and on A3 the number of the device, too.
            numbers = [int(n) for n in line.strip("|").split("|")[0].split()]
            card, chip = int(begun[1]), numbers[0] if numbers else 0
            number = numbers[1] if len(numbers) > 1 else card
            used, total = MEMORY.findall(line)[-1]
            npus.append(
                Npu(number, card, chip, begun[2], begun[3], int(used), int(total))
            )
            begun = None
        elif found := PROCESS_ROW.match(line):
            of_card, of_chip, pid, name, taken = found.groups()
            chip = int(of_chip or 0)
            processes.append(Process(int(of_card), chip, int(pid), name, int(taken)))
    return Smi("", version[1] if version else "", tuple(npus), tuple(processes))


def fields(text: str) -> dict[str, str]:
    """The lines `NAME : VALUE` or `NAME=VALUE` of a text, names in lower case."""
    pairs = re.findall(r"^\s*([^=:\n]*?)\s*[=:]\s*(.*?)\s*$", text, re.M)
    return {name.lower(): value for name, value in pairs}
