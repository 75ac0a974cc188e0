"""The NPUs: what `npu-smi` says, in each form; are they there, fit, and free."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from vllm_balance.doctor.lines import Line, Said, judged

if TYPE_CHECKING:
    from vllm_balance.doctor.machine import Machine

Ask = Callable[..., tuple[str, str]]
"""Arguments of `npu-smi` to its output, and to why there is none (else empty)."""

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
"""What the SoC of a chip begins with, to the device that a wheel is for."""
SHARED_DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
IDLE_SHARE = 0.15
"""Of a chip's memory: an idle driver takes 3 GB of 32 or 64."""


class Npu(NamedTuple):
    """One chip."""

    number: int
    """That of `/dev/davinci`."""
    card: int
    chip: int
    name: str
    health: str
    used_mb: int
    total_mb: int


class Process(NamedTuple):
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
        return Smi(problem)
    smi = read(text)
    for npu in smi.npus[:1]:
        board = ("info", "-t", "board", "-i", str(npu.card))
        smi.board.update(fields(said(*board)[0]))
        if "chip name" not in smi.board:
            smi.board.update(fields(said(*board, "-c", str(npu.chip))[0]))
    return smi


def read(text: str) -> Smi:
    """The table of `npu-smi info`, of any version."""
    version = VERSION.search(text)
    npus = []
    for card, name, health, cell, used, total in CHIP.findall(text):
        # The first cell is the chip, and on A3 the number of the device, too.
        numbers = [int(number) for number in cell.split()] or [0]
        number = numbers[1] if len(numbers) > 1 else int(card)
        place = (number, int(card), numbers[0])
        npus.append(Npu(*place, name, health, int(used), int(total)))
    processes = [
        Process(int(card), int(chip or 0), int(pid), name, int(used))
        for card, chip, pid, name, used in PROCESS.findall(text)
    ]
    return Smi("", version[1] if version else "", tuple(npus), tuple(processes))


def fields(text: str) -> dict[str, str]:
    """The lines `NAME : VALUE` or `NAME=VALUE` of a text, names in lower case."""
    pairs = re.findall(r"^\s*([^=:\n]*?)\s*[=:]\s*(.*?)\s*$", text, re.M)
    return {name.lower(): value for name, value in pairs}


def devices(machine: Machine) -> Said:
    """The files of the devices, and the right to open them."""
    chips = machine.glob("/dev/davinci[0-9]*")
    for name in [*SHARED_DEVICES, *(chips or ["/dev/davinci0"])]:
        path = machine.path(name)
        if not path.exists():
            do = f"pass --device {name}, use the vendor's container runtime, or "
            do += "install the driver"
            yield Line(name, "bad", "no such file", "a device", do)
        elif not os.access(path, os.R_OK | os.W_OK):
            group = path.stat().st_gid
            found = f"user {os.getuid()} may not open it"
            do = f"usermod -aG {group} USER; in a container --group-add {group}"
            yield Line(name, "bad", found, "read and write", do)
    yield f"{len(chips)} of /dev/davinci*, all to be opened"


def chips(machine: Machine) -> Said:
    """What `npu-smi` says of the chips, against the wheel's."""
    smi, info = machine.smi, machine.info
    if smi.problem:
        # Without it the server starts, and does not bind its processes to cores.
        missing = smi.problem.startswith("no ")
        do = "look into dmesg: the driver does not answer"
        if missing:
            do = "mount /usr/local/bin/npu-smi and /usr/local/dcmi of the host"
        expected = "a table of the NPUs"
        yield judged(
            "npu-smi", smi.problem, expected, do, warn=missing, bad=not missing
        )
        return
    if not smi.npus:
        do = "npu-smi info -l; lspci -d 19e5:; reload or reinstall the driver"
        yield Line("NPUs", "bad", "npu-smi lists none", "at least one", do)
        return
    wanted = (info.device or "").strip("_") if info else ""
    device = smi.device or "not known: npu-smi info -t board -i 0 -c 0"
    found = f"{len(smi.npus)} of {smi.soc or smi.npus[0].name} ({device})"
    do = f"install a wheel for {smi.device} (`make wheel SOC={smi.soc}`)"
    unknown, bad = smi.device is None, smi.device not in (None, wanted)
    yield judged("chip", found, f"{wanted}, as the wheel", do, bad=bad, unknown=unknown)
    for npu in smi.npus:
        if npu.health.upper() != "OK":
            do = f"npu-smi info -t health -i {npu.card}"
            yield Line(f"NPU {npu.number}", "warn", npu.health, "health OK", do)


def use(machine: Machine) -> Said:
    """Who else uses the NPUs that a server would take."""
    smi = machine.smi
    if smi.problem:
        yield Line("use of NPUs", "unknown", f"npu-smi: {smi.problem}")
    chosen = machine.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if (
        smi.npus
        and chosen is not None
        and len(machine.visible) != len(chosen.split(","))
    ):
        expected = f"numbers from 0 to {len(smi.npus) - 1}"
        do = "count from 0 those that npu-smi lists here, not those of the host"
        yield Line("ASCEND_RT_VISIBLE_DEVICES", "bad", chosen, expected, do)
    for npu in (smi.npus[position] for position in machine.visible):
        mine = [p for p in smi.processes if (p.card, p.chip) == (npu.card, npu.chip)]
        if mine:
            who = ", ".join(f"{p.name} ({p.pid}, {p.used_mb} MB)" for p in mine)
            do = "stop it (`ps -fp PID`), or choose others: ASCEND_RT_VISIBLE_DEVICES"
            yield Line(f"NPU {npu.number}", "bad", f"used by {who}", "free", do)
        elif npu.used_mb > IDLE_SHARE * npu.total_mb:
            do = "npu-smi info on the host shows the processes of other containers"
            found = (
                f"{npu.used_mb} of {npu.total_mb} MB are in use, by no process that "
            )
            found += "is seen here"
            yield Line(f"NPU {npu.number}", "warn", found, "free", do)
    yield f"{len(machine.visible)} free"


def network(machine: Machine) -> Said:
    """/etc/hccn.conf: addresses of the NPUs' own network, between hosts."""
    look = "for i in $(seq 0 7); do hccn_tool -i $i -ip -g; done"
    text = machine.read("/etc/hccn.conf")
    given = {int(n) for n in re.findall(r"^\s*address_(\d+)\s*=\s*\S", text, re.M)}
    missing = [npu.number for npu in machine.smi.npus if npu.number not in given]
    if not text:
        found = "no such file; containers have one only if it is mounted"
        yield Line("hccn.conf", "unknown", found, do=f"on the host: {look}")
    elif missing and machine.plan.spans_hosts:
        found = f"no address for {', '.join(map(str, missing))}"
        do = f"hccn_tool -i {missing[0]} -ip -s address … netmask …; then {look}"
        yield Line("hccn.conf", "bad", found, "an address for each NPU", do)
    yield f"{len(given)} addresses"
