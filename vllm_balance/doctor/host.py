"""What a host gives its processes: shared memory, files, locked memory, cores."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from vllm_balance.doctor.lines import Line, judged
from vllm_balance.doctor.machine import Machine

MEGABYTE = 1 << 20
QUEUE_MB = 160
"""What vLLM's queue to the workers of a rank may fill: ten chunks of
VLLM_MQ_MAX_CHUNK_BYTES_MB, 16."""
SHARED_MB = 1024
"""`--shm-size=1g` of upstream's installation guide."""
LIMITS = {
    # vLLM raises its own limit to this, where the hard limit lets it.
    "open files": (65535, "files", "LimitNOFILE=1048576, or --ulimit nofile=1048576"),
    "locked memory": (1 << 26, "bytes", "LimitMEMLOCK=infinity, --ulimit memlock=-1"),
}
"""The least hard limit, what it counts, and what raises it."""
CORES_PER_NPU = {"A5": 3}
"""As many the plugin's CPU binding wants (`cpu_binding.py`); others 5."""
TOOLS = {"lscpu": "util-linux", "taskset": "util-linux", "ps": "procps"}
"""What the plugin's CPU binding runs, to the package that has it."""
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "": 1}


def shared_memory(machine: Machine) -> Iterator[Line]:
    """Through /dev/shm go the messages to workers, and collectives on one host."""
    mounts = machine.read("/proc/self/mounts") or ""
    options = re.findall(r"^\S+ /dev/shm \S+ (\S+)", mounts, re.M)
    size = re.search(r"\bsize=(\d+)([kmg]?)", options[-1]) if options else None
    if size:
        megabytes = int(size[1]) * UNITS[size[2]] // MEGABYTE
    elif machine.root == Path("/") and Path("/dev/shm").is_dir():
        megabytes = shutil.disk_usage("/dev/shm").total // MEGABYTE
    else:
        yield Line("/dev/shm", "unknown", "no size in /proc/self/mounts")
        return
    do = "docker run --shm-size=1g; in Kubernetes an emptyDir with medium: Memory"
    needed = QUEUE_MB * machine.local_ranks
    expected, few = f"{max(needed, SHARED_MB)} MB", megabytes < SHARED_MB
    found = f"{megabytes} MB"
    yield judged("/dev/shm", found, expected, do, bad=megabytes < needed, warn=few)


def limits(machine: Machine) -> Iterator[Line]:
    """Of open files, and, as NPUs want it, of locked memory."""
    text = machine.read("/proc/self/limits") or ""
    given = re.findall(r"^Max (open files|locked memory)\s+\S+\s+(\S+)", text, re.M)
    if not given:
        yield Line("limits", "unknown", "none in /proc/self/limits")
    for name, hard in given:
        if name == "locked memory" and not machine.is_for_npus:
            continue
        least, unit, do = LIMITS[name]
        few = hard != "unlimited" and int(hard) < least
        yield judged(name, f"at most {hard} {unit}", f"{least} or more", do, warn=few)


def cores(machine: Machine) -> Iterator[Line]:
    """Cores that may be used, against what the ranks and their threads want."""
    allowed = _allowed(machine)
    if allowed is None:
        yield Line("cores", "unknown", "no Cpus_allowed_list in /proc/self/status")
        return
    quota = _quota(machine)
    count = min(allowed, quota) if quota else float(allowed)
    found = f"{count:g}" + (" by the quota of the cgroup" if count < allowed else "")
    npus = len(machine.visible) if machine.is_for_npus else 0
    each = CORES_PER_NPU.get(machine.smi.device or "", 5) if npus else 1
    processes = npus or machine.local_ranks
    threads = machine.environ.get("OMP_NUM_THREADS", "1")
    per_rank = int(threads) if threads.isdigit() else 1
    do = "raise --cpus, resources.limits.cpu or CPUQuota, or widen the cpuset"
    expected = f"{processes * each}: {each} for each of {processes}"
    if per_rank > each:
        expected = f"{processes * per_rank}: OMP_NUM_THREADS={threads} of {processes}"
        do = "export OMP_NUM_THREADS=1"
    few = count < processes * max(each, per_rank)
    yield judged("cores", found, expected, do, warn=few)


def _allowed(machine: Machine) -> int | None:
    status = machine.read("/proc/self/status") or ""
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.M)
    if found is None:
        return None
    ranges = [part.split("-") for part in found[1].split(",")]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ranges)


def _quota(machine: Machine) -> float | None:
    """Cores that the cgroup grants; None without a limit."""
    groups = [
        line[3:] for line in machine.lines("/proc/self/cgroup") if line[:3] == "0::"
    ]
    texts = [machine.read(f"/sys/fs/cgroup{g}/cpu.max") for g in (*groups, "/")]
    old = "/sys/fs/cgroup/cpu/cpu.cfs_{}_us"
    texts.append(
        " ".join(machine.read(old.format(n)) or "" for n in ("quota", "period"))
    )
    quota, period = next((t.split() for t in texts if t and t.strip()), ("max", ""))
    return None if quota in ("max", "-1") else int(quota) / int(period)


def tools(machine: Machine) -> Iterator[Line]:
    """Programs that bind the processes of a rank to cores."""
    path = machine.environ.get("PATH", "")
    missing = [name for name in TOOLS if shutil.which(name, path=path) is None]
    for name in missing:
        expected, do = "a program for CPU binding", f"install {TOOLS[name]}"
        yield Line(name, "warn", "not on PATH", expected, do)
    if not missing:
        yield Line("CPU binding", "ok", ", ".join(TOOLS))
