"""Cores that a process may use, in the cgroups of hosts and containers."""

import os

import pytest

from vllm_balance.cores import usable_cores

TOP, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct"
CASES = {
    "no cgroup": ({}, 8),
    "a container": ({"own": "0::/\n", f"{TOP}/cpu.max": "250000 100000\n"}, 2),
    "above the cores": ({"own": "0::/\n", f"{TOP}/cpu.max": "1600000 100000\n"}, 8),
    "less than one": ({"own": "0::/\n", f"{TOP}/cpu.max": "50000 100000\n"}, 1),
    "a slice above": (
        {
            "own": "0::/user.slice/a.scope\n",
            f"{TOP}/user.slice/a.scope/cpu.max": "max 100000\n",
            f"{TOP}/user.slice/cpu.max": "300000 100000\n",
        },
        3,
    ),
    "version 1, a container": (
        {
            "own": "5:cpuset:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n",
            f"{V1}/cpu.cfs_quota_us": "400000\n",
            f"{V1}/cpu.cfs_period_us": "100000\n",
        },
        4,
    ),
    "version 1, no quota": (
        {
            "own": "4:cpu,cpuacct:/\n",
            f"{V1}/cpu.cfs_quota_us": "-1\n",
            f"{V1}/cpu.cfs_period_us": "100000\n",
        },
        8,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_quota_counts(tmp_path, monkeypatch, name):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    files, expected = CASES[name]
    for file, text in files.items():
        path = tmp_path / file.replace("own", "proc/self/cgroup")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert usable_cores(tmp_path) == expected


def test_cores_that_a_process_may_not_use_do_not_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    assert usable_cores() == 1
