"""Checks that the NPUs exist, are those of the wheel, and are free."""

from __future__ import annotations

import os
import re

from vllm_balance.doctor.diagnosis import Diagnoses, Diagnosis, judged
from vllm_balance.doctor.machine import Machine

SHARED_DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
DRIVER = "/usr/local/Ascend/driver"
REPAIRS = {
    r"^no ": "mount /usr/local/bin/npu-smi and /usr/local/dcmi of the host",
    # What containers and users get (vllm-ascend issue 2698, cann-container-image 46).
    r"-80(05|20)\b": "find out by `npu-smi info` on the host who uses them: this is "
    "said where another container has the NPUs, or this one, or its user, has no right "
    "to them; leave the driver as it is, for others may serve on it",
    r"\.so\b|shared librar": f"mount {DRIVER}/lib64 of the host, and have its folders "
    "driver and common in LD_LIBRARY_PATH",
    "": "look into dmesg: the driver does not answer",
}
"""Repairs by a pattern of npu-smi's message; the first that matches counts."""
IDLE_SHARE = 0.15
"""The share of a chip's memory that an idle driver takes at most: 3 GB of 32 or 64."""


def devices(machine: Machine) -> Diagnoses:
    chips = machine.glob("/dev/davinci[0-9]*")
    for name in [*SHARED_DEVICES, *(chips or ["/dev/davinci0"])]:
        path = machine.path(name)
        if not path.exists():
            do = f"pass --device {name}, use the vendor's container runtime, or "
            do += "install the driver"
            yield Diagnosis(name, "bad", "no such file", "a device", do)
        elif not os.access(path, os.R_OK | os.W_OK):
            group = path.stat().st_gid
            found = f"user {os.getuid()} may not open it"
            do = f"usermod -aG {group} USER; in a container --group-add {group}"
            yield Diagnosis(name, "bad", found, "read and write", do)
    yield f"{len(chips)} of /dev/davinci*, all to be opened"


def chips(machine: Machine) -> Diagnoses:
    smi, info = machine.smi, machine.info
    if smi.problem:
        # Without it the server starts, and does not bind its processes to cores.
        missing = smi.problem.startswith("no ")
        do = next(
            do for pattern, do in REPAIRS.items() if re.search(pattern, smi.problem)
        )
        expected = "a table of the NPUs"
        yield judged(
            "npu-smi", smi.problem, expected, do, warn=missing, bad=not missing
        )
        return
    if not smi.npus:
        do = "npu-smi info -l; lspci -d 19e5:; reload or reinstall the driver"
        yield Diagnosis("NPUs", "bad", "npu-smi lists none", "at least one", do)
        return
    target = (info.device or "").strip("_") if info else ""
    device = smi.device or "not known: npu-smi info -t board -i 0 -c 0"
    found = f"{len(smi.npus)} of {smi.soc or smi.npus[0].name} ({device})"
    do = f"install a wheel for {smi.device} (`make wheel SOC={smi.soc}`)"
    unknown, bad = smi.device is None, smi.device not in (None, target)
    yield judged("chip", found, f"{target}, as the wheel", do, bad=bad, unknown=unknown)
    for npu in smi.npus:
        if npu.health.upper() != "OK":
            do = f"npu-smi info -t health -i {npu.card}"
            yield Diagnosis(f"NPU {npu.number}", "warn", npu.health, "health OK", do)


def use(machine: Machine) -> Diagnoses:
    smi = machine.smi
    if smi.problem:
        yield Diagnosis("use of NPUs", "unknown", f"npu-smi: {smi.problem}")
    chosen = machine.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if (
        smi.npus
        and chosen is not None
        and len(machine.visible) != len(chosen.split(","))
    ):
        expected = f"numbers from 0 to {len(smi.npus) - 1}"
        do = "count from 0 those that npu-smi lists here, not those of the host"
        yield Diagnosis("ASCEND_RT_VISIBLE_DEVICES", "bad", chosen, expected, do)
    for npu in (smi.npus[position] for position in machine.visible):
        users = [p for p in smi.processes if (p.card, p.chip) == (npu.card, npu.chip)]
        if users:
            names = (f"{p.name or 'process'} ({p.pid}, {p.used_mb} MB)" for p in users)
            who = ", ".join(names)
            do = "stop it (`ps -fp PID`), or choose others: ASCEND_RT_VISIBLE_DEVICES"
            yield Diagnosis(f"NPU {npu.number}", "bad", f"used by {who}", "free", do)
        elif npu.used_mb > IDLE_SHARE * npu.total_mb:
            do = "npu-smi info on the host shows the processes of other containers"
            found = (
                f"{npu.used_mb} of {npu.total_mb} MB are in use, by no process that "
            )
            found += "is seen here"
            yield Diagnosis(f"NPU {npu.number}", "warn", found, "free", do)
    yield f"{len(machine.visible)} free"
