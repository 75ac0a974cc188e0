"""How many cores this process may use."""

from __future__ import annotations

import os
import re
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Those of its affinity, or fewer where a cgroup of it has a quota; at least one.

    A container with a quota (`docker run --cpus`, `limits.cpu`) sees all cores of its
    host. A part of a core is not counted.
    """
    if not hasattr(os, "sched_getaffinity"):  # neither affinity nor cgroups
        return os.cpu_count() or 1
    cores = float(len(os.sched_getaffinity(0)))
    groups = _read(root / "proc/self/cgroup")
    # `0::/a/b` is of cgroup v2, `4:cpu,cpuacct:/a/b` of v1.
    for kind, group in re.findall(r"^\d+:(|[^:]*\bcpu\b[^:]*):/(.*)$", groups, re.M):
        mount = root / "sys/fs/cgroup" / kind
        # In a container the path may be that of the host, and only its top is there.
        for folder in (mount / group, *(mount / group).parents):
            of_v1 = f"{_read(folder / 'cpu.cfs_quota_us')} "
            of_v1 += _read(folder / "cpu.cfs_period_us")
            for limit in (_read(folder / "cpu.max"), of_v1):
                if quota := re.fullmatch(r"(\d+) (\d+)", limit):
                    cores = min(cores, int(quota[1]) / int(quota[2]))
            if folder == mount:
                break
    return max(1, int(cores))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
