"""The NPUs: are they there, of the wheel's kind, healthy, and free."""

from __future__ import annotations

import os
from collections.abc import Iterator

from vllm_balance.doctor.lines import Line, State, judged
from vllm_balance.doctor.machine import Machine

SHARED_DEVICES = ("davinci_manager", "devmm_svm", "hisi_hdc")
IDLE_SHARE = 0.15
"""Of a chip's memory: an idle driver takes 3 GB of 32 or 64."""


def devices(machine: Machine) -> Iterator[Line]:
    """The files of the devices, and the right to open them."""
    names = [f"/dev/{name}" for name in SHARED_DEVICES]
    chips = machine.glob("/dev/davinci[0-9]*")
    wrong = False
    for name in [*names, *(chips or ["/dev/davinci0"])]:
        path = machine.path(name)
        if not path.exists():
            do = f"pass --device {name}, use the vendor's container runtime, or "
            do += "install the driver"
            yield Line(name, "bad", "no such file", "a device", do)
            wrong = True
        elif not os.access(path, os.R_OK | os.W_OK):
            group = path.stat().st_gid
            found = f"user {os.getuid()} may not open it"
            do = f"usermod -aG {group} USER; in a container --group-add {group}"
            yield Line(name, "bad", found, "read and write", do)
            wrong = True
    if not wrong:
        yield Line("devices", "ok", f"{len(chips)} of /dev/davinci*, all to be opened")


def chips(machine: Machine) -> Iterator[Line]:
    """What `npu-smi` says of the chips, against the wheel's."""
    smi, info = machine.smi, machine.info
    if smi.problem:
        # Without it the server starts, and does not bind its processes to cores.
        missing = smi.problem.startswith("no ")
        do = "look into dmesg: the driver does not answer"
        if missing:
            do = "mount /usr/local/bin/npu-smi and /usr/local/dcmi of the host"
        state: State = "warn" if missing else "bad"
        yield Line("npu-smi", state, smi.problem, "a table of the NPUs", do)
        return
    if not smi.npus:
        do = "npu-smi info -l; lspci -d 19e5:; reload or reinstall the driver"
        yield Line("NPUs", "bad", "npu-smi lists none", "at least one", do)
        return
    found = f"{len(smi.npus)} of {smi.soc or smi.npus[0].name}"
    wanted = (info.device or "").strip("_") if info else ""
    do = f"install a wheel for {smi.device} (`make wheel SOC={smi.soc}`)"
    bad = smi.device not in (None, wanted)
    unknown = smi.device is None
    found = f"{found} ({smi.device or 'not known: npu-smi info -t board -i 0 -c 0'})"
    yield judged("chip", found, f"{wanted}, as the wheel", do, bad=bad, unknown=unknown)
    for npu in smi.npus:
        if npu.health.upper() != "OK":
            do = f"npu-smi info -t health -i {npu.card}"
            yield Line(f"NPU {npu.number}", "warn", npu.health, "health OK", do)


def use(machine: Machine) -> Iterator[Line]:
    """Who else uses the NPUs that a server would take."""
    smi = machine.smi
    if smi.problem:
        yield Line("use of NPUs", "unknown", f"npu-smi: {smi.problem}")
        return
    chosen = machine.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if chosen is not None and len(machine.visible) != len(chosen.split(",")):
        expected = f"numbers from 0 to {len(smi.npus) - 1}"
        do = "count from 0 those that npu-smi lists here, not those of the host"
        yield Line("ASCEND_RT_VISIBLE_DEVICES", "bad", chosen, expected, do)
    busy = False
    for npu in (smi.npus[position] for position in machine.visible):
        mine = [p for p in smi.processes if (p.card, p.chip) == (npu.card, npu.chip)]
        memory = f"{npu.used_mb} of {npu.total_mb} MB are in use"
        if mine:
            who = ", ".join(f"{p.name} ({p.pid}, {p.used_mb} MB)" for p in mine)
            do = "stop it (`ps -fp PID`), or choose others: ASCEND_RT_VISIBLE_DEVICES"
            yield Line(f"NPU {npu.number}", "bad", f"used by {who}", "free", do)
        elif npu.used_mb > IDLE_SHARE * npu.total_mb:
            do = "npu-smi info on the host shows the processes of other containers"
            found = f"{memory}, by no process that is seen here"
            yield Line(f"NPU {npu.number}", "warn", found, "free", do)
        else:
            continue
        busy = True
    if not busy:
        yield Line("use of NPUs", "ok", f"{len(machine.visible)} are free")
