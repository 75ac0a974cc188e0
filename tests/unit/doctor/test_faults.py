"""Each fault, made on purpose, is one line that names it and its repair.

Machines are made of files, and the command runs as it is installed: `doctor_roots`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor_roots import ASCEND, TCP, FakeMachine, table

Break = Callable[[FakeMachine], object]
CANN = f"{ASCEND}/cann-9.1.0"
CANN_INFO = f"{CANN}/aarch64-linux/ascend_toolkit_install.info"
ATB = f"{ASCEND}/nnal/atb/latest/atb/cxx_abi_1/lib"


def variable(name: str, value: str) -> Break:
    return lambda m: m.variables.update({name: value})


def unset(name: str) -> Break:
    return lambda m: m.variables.pop(name)


def written(name: str, text: str) -> Break:
    return lambda m: m.write(name, text)


def gone(name: str) -> Break:
    return lambda m: (m.folder / "root" / name.lstrip("/")).unlink()


def other(name: str, version: str) -> Break:
    def change(machine: FakeMachine) -> None:
        machine.remove(name)
        machine.install(name, version)

    return change


def under(machine: FakeMachine) -> None:
    machine.install("torch", "2.9.0", below="below")
    machine.variables["PYTHONPATH"] = f"{machine.packages}:{machine.packages}/below"


def unbound(machine: FakeMachine) -> None:
    """A function that no library has, in a library that Python imports."""
    built = machine.library("/built.so", (b"__assert_fail\0", b"__assert_fooo\0"))
    built.rename(machine.packages / "vllm_ascend/vllm_ascend_C.so")


def without_libz(machine: FakeMachine) -> None:
    machine.library(f"{CANN}/lib64/libhccl.so", (b"libc.so.6\0", b"libz.so.0\0"))


def without(package: str) -> Break:
    return lambda m: (m.packages / package).rename(m.packages / f"not_{package}")


FAULTS: dict[str, tuple[Break, str, str, str]] = {
    # what is broken: how, and the line: its name, what is found, what to do
    "a chip that the wheel is not for": (
        lambda m: m.npu_smi(table("A3", "25.5.1"), "A3"),
        *("chip", "ascend910_9392 (A3)", "SOC=ascend910_9392"),
    ),
    "no NPU": (
        lambda m: m.npu_smi("| npu-smi 25.5.1   Version: 25.5.1 |\n"),
        *("NPUs", "lists none", "lspci"),
    ),
    "no npu-smi": (
        lambda m: (m.programs / "npu-smi").unlink(),
        *("npu-smi", "no npu-smi on PATH", "mount /usr/local/bin/npu-smi"),
    ),
    "a driver that does not answer": (
        lambda m: m.npu_smi("dcmi module initialize failed. ret is -8005", status=255),
        *("npu-smi", "status 255", "dmesg"),
    ),
    "a chip that is not well": (
        lambda m: m.npu_smi(table(health="Alarm")),
        *("NPU 0", "Alarm", "npu-smi info -t health -i 0"),
    ),
    "another process on an NPU": (
        lambda m: m.npu_smi(table(processes=((4711, "VLLM::Worker", 58000),))),
        *("NPU 0", "VLLM::Worker (4711, 58000 MB)", "ASCEND_RT_VISIBLE_DEVICES"),
    ),
    "memory that a process out of sight holds": (
        lambda m: m.npu_smi(table(used=40000)),
        *("NPU 0", "40000 of 65536 MB", "other containers"),
    ),
    "a device that was not passed": (
        gone("/dev/devmm_svm"),
        *("/dev/devmm_svm", "no such file", "--device /dev/devmm_svm"),
    ),
    "an NPU that there is not": (
        variable("ASCEND_RT_VISIBLE_DEVICES", "1,7"),
        *("ASCEND_RT_VISIBLE_DEVICES", "1,7", "count from 0"),
    ),
    "a driver that is too old": (
        lambda m: (
            m.write(f"{ASCEND}/driver/version.info", "Version=24.1.rc3\n"),
            m.write(f"{ASCEND}/firmware/version.info", ""),
            m.npu_smi(table("A2", "24.1.rc3")),
        ),
        *("driver", "24.1.rc3", "CANN's release notes"),
    ),
    "firmware that the driver does not take": (
        written(f"{ASCEND}/firmware/version.info", "Version=6.3.0.1.240\n"),
        *("firmware", "6.3.0.1.240", "one release"),
    ),
    "another release of CANN": (
        written(CANN_INFO, "version=8.5.0\n"),
        *("CANN", "8.5.0", "install CANN 9.1.0"),
    ),
    "set_env.sh was not sourced": (
        unset("ASCEND_HOME_PATH"),
        *("CANN", "ASCEND_HOME_PATH is not set", "source"),
    ),
    "set_env.sh of NNAL was not sourced": (
        unset("ATB_HOME_PATH"),
        *("NNAL", "ATB_HOME_PATH is not set", "nnal/atb/set_env.sh"),
    ),
    "two releases of CANN in one shell": (
        lambda m: m.variables.update(
            LD_LIBRARY_PATH=f"{m.variables['LD_LIBRARY_PATH']}:{ASCEND}/cann-8.5.0/lib64"
        ),
        *("LD_LIBRARY_PATH", "8.5.0 and 9.1.0", "new shell"),
    ),
    "no libatb.so": (
        gone(f"{ATB}/libatb.so"),
        *("libatb.so", "in no folder", "nnal/atb/set_env.sh"),
    ),
    "a driver that was not mounted": (
        gone(f"{ASCEND}/driver/lib64/driver/libascend_hal.so"),
        *("libascend_hal.so", "in no folder", f"mount {ASCEND}/driver/lib64"),
    ),
    "a library that lacks another": (
        without_libz,
        *("libhccl.so", "libz.so.0 => not found", "set_env.sh"),
    ),
    "a library that is not whole": (
        written(f"{ATB}/libatb.so", "\x7fELF"),
        *("libatb.so", "not a dynamic executable", "nnal/atb/set_env.sh"),
    ),
    "a symbol that no library has": (
        unbound,
        *("vllm_ascend_C.so", "undefined __assert_fooo", "of one line"),
    ),
    "torch and torch-npu that do not match": (
        other("torch", "2.9.0"),
        *("torch", "2.9.0", "pip install --no-deps 'torch==2.10.0'"),
    ),
    "no torch-npu": (
        lambda m: m.remove("torch-npu"),
        *("torch-npu", "none is installed", "vendor's index"),
    ),
    "a torch under torch": (under, "torch", "over 2.9.0 in", "uninstall --yes torch"),
    "triton over triton-ascend": (
        lambda m: m.install("triton", "3.9.0"),
        *("triton-ascend", "triton 3.9.0 over", "pip uninstall --yes triton"),
    ),
    "no pybind11": (without("pybind11"), "triton-ascend", "pybind11", "pip install"),
    "a stock vLLM over ours": (
        lambda m: (
            m.install("vllm", "0.22.1", below="below")
            and m.variables.update(PYTHONPATH=f"{m.packages}:{m.packages}/below")
        ),
        *("wheel", "vllm 0.22.1", "pip uninstall -y vllm"),
    ),
    "little shared memory": (
        written("/proc/self/mounts", "shm /dev/shm tmpfs rw,size=65536k 0 0\n"),
        *("/dev/shm", "64 MB", "--shm-size=1g"),
    ),
    "few open files": (
        written(
            "/proc/self/limits",
            "Max open files 1024 4096 files\n"
            "Max locked memory unlimited unlimited bytes\n",
        ),
        *("open files", "4096", "LimitNOFILE"),
    ),
    "little locked memory": (
        written(
            "/proc/self/limits",
            "Max open files 65536 65536 files\nMax locked memory 65536 65536 bytes\n",
        ),
        *("locked memory", "65536 bytes", "LimitMEMLOCK=infinity"),
    ),
    "few cores by a quota": (
        written("/sys/fs/cgroup/cpu.max", "400000 100000\n"),
        *("cores", "4 by the quota of the cgroup", "limits.cpu"),
    ),
    "too many threads": (
        variable("OMP_NUM_THREADS", "100"),
        *("cores", "48", "OMP_NUM_THREADS=1"),
    ),
    "nothing to bind processes with": (
        lambda m: (m.programs / "taskset").unlink(),
        *("taskset", "not on PATH", "util-linux"),
    ),
    "another host's address": (
        variable("HCCL_IF_IP", "10.0.0.2"),
        *("HCCL_IF_IP", "10.0.0.2", "ip -4 a"),
    ),
    "an interface of another host": (
        variable("GLOO_SOCKET_IFNAME", "bond0"),
        *("GLOO_SOCKET_IFNAME", "no bond0 that is up; there are eth0, lo", "ip a"),
    ),
    "a host that has no address": (
        written("/etc/hosts", "127.0.0.1 localhost\n"),
        *("head", "has no address", "/etc/hosts"),
    ),
    "a port of HCCL that is taken": (
        written("/proc/net/tcp", f"{TCP}   0: 0100007F:EA61 00000000:0000 0A 0\n"),
        *("port 60001", "something listens", "HCCL_IF_BASE_PORT"),
    ),
    "a mode that locks two groups": (
        variable("HCCL_OP_EXPANSION_MODE", "AIV"),
        *("HCCL_OP_EXPANSION_MODE", "AIV", "unset"),
    ),
    "a variable that the plugin no longer reads": (
        variable("VLLM_ASCEND_ENABLE_PREFETCH_MLP", "1"),
        *("VLLM_ASCEND_ENABLE_PREFETCH_MLP", "read by nothing", "unset"),
    ),
    "a variable of Kubernetes": (
        variable("VLLM_PORT", "tcp://10.96.0.1:8000"),
        *("VLLM_PORT", "tcp://", "enableServiceLinks"),
    ),
}

ONLY_WARNINGS = {
    "no npu-smi",
    "a chip that is not well",
    "memory that a process out of sight holds",
    "a driver that is too old",
    "a torch under torch",
    "few open files",
    "little locked memory",
    "few cores by a quota",
    "too many threads",
    "nothing to bind processes with",
    "a host that has no address",
    "a port of HCCL that is taken",
    "a mode that locks two groups",
    "a variable that the plugin no longer reads",
}
"""A server starts in spite of these, so the status is 0."""


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) > 20


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_named_with_its_repair(machine: FakeMachine, fault: str) -> None:
    spoil, what, found, do = FAULTS[fault]
    spoil(machine)
    status, lines = machine.doctor()
    bad = [x for x in lines if x["state"] in ("warn", "bad")]
    named = [x for x in bad if x["what"] == what and found in x["found"]]
    assert len(named) == 1, bad
    assert do in named[0]["do"]
    # Each chip that is not well has a line of its own.
    assert {x["what"].rstrip("01") for x in bad} == {what.rstrip("01")}
    assert status == (fault not in ONLY_WARNINGS)


@pytest.mark.skipif(os.getuid() != 0, reason="must become another user")
def test_a_device_that_may_not_be_opened(machine: FakeMachine) -> None:
    for folder in [machine.folder, *machine.folder.parents]:
        if folder.stat().st_uid == os.getuid() and folder != Path("/tmp"):
            folder.chmod(0o755)
    device = machine.folder / "root/dev/davinci1"
    device.chmod(0o600)
    bad = [x for x in machine.doctor(user=4321)[1] if x["state"] == "bad"]
    named = [x for x in bad if x["what"] == "/dev/davinci1"]
    assert named[0]["found"] == "user 4321 may not open it"
    assert "--group-add 0" in named[0]["do"]


HEALTHY = {
    "0.23 on A2": {},
    "0.23 on A2, a wide table": {"hdk": "26.0.rc1"},
    "0.23 on A3": {"device": "A3"},
    "0.23 on 310P": {"device": "310P"},
    "0.30 on A3": {"device": "A3", "line": "0.30", "hdk": "26.0.rc2", "cann": "9.2.0"},
    "0.30 on A5": {"device": "A5", "line": "0.30", "hdk": "26.0.0", "cann": "9.2.0"},
    "0.33 without NPUs": {"line": "0.33"},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_gets_no_false_alarm(tmp_path: Path, name: str) -> None:
    machine = FakeMachine(tmp_path, **HEALTHY[name])
    status, lines = machine.doctor("--fail-on", "unknown")
    assert [x for x in lines if x["state"] != "ok"] == []
    assert status == 0
    assert {"wheel", "requirements", "variables", "ports"} <= {x["what"] for x in lines}


@pytest.mark.parametrize("device", ["A2", "A3", "310P", "A5"])
@pytest.mark.parametrize("version", ["24.1.rc3.7", "25.7.rc1", "26.0.rc2"])
def test_every_form_of_npu_smi_is_read(device: str, version: str) -> None:
    from vllm_balance.doctor.npus import ask, read

    text = table(device, version, processes=((815, "python3", 12417),))
    smi = read(text)
    assert smi.version == version
    found = [(n.number, n.health, n.used_mb) for n in smi.npus]
    assert found == [(0, "OK", 3406), (1, "OK", 3406)]
    (process,) = smi.processes
    first = smi.npus[0]
    assert (process.pid, process.used_mb) == (815, 12417)
    assert (process.card, process.chip) == (first.card, first.chip)
    assert ask(lambda *_: ("", "no npu-smi on PATH")).problem
