"""Each fault, made on purpose, is one line that names it and its repair.

Machines are made of files, and the command runs as it is installed: `doctor_roots`.
"""

import os
import shutil
from pathlib import Path

import pytest

from doctor_roots import ASCEND, TCP, FakeMachine, table
from vllm_balance.doctor.diagnosis import Diagnosis, show
from vllm_balance.doctor.host import interfaces, names
from vllm_balance.doctor.machine import Machine
from vllm_balance.doctor.plan import Plan
from vllm_balance.doctor.smi import read

CANN_INFO = f"{ASCEND}/cann-9.1.0/aarch64-linux/ascend_toolkit_install.info"


def variable(name, value):
    return lambda m: m.variables.update({name: value})


def unset(name):
    return lambda m: m.variables.pop(name)


def written(name, text):
    return lambda m: m.write(name, text)


def other(name, version):
    def change(machine):
        machine.remove(name)
        machine.install(name, version)

    return change


def under(name, version):
    def change(machine):
        machine.install(name, version, below="below")
        machine.variables["PYTHONPATH"] = f"{machine.packages}:{machine.packages}/below"

    return change


def smi(*given, **more):
    return lambda m: m.npu_smi(*given, **more)


def without(package):
    return lambda m: (m.packages / package).rename(m.packages / f"not_{package}")


THERE_ARE = "that is up; there are eth0, lo"
VARIABLES = [  # its name and value, and the line without the name
    ("ASCEND_RT_VISIBLE_DEVICES", "1,7", "bad | 1,7 | count from 0"),
    ("ASCEND_RT_VISIBLE_DEVICES", "0, 1", "bad | 0, 1 | count from 0"),
    ("HCCL_IF_IP", "10.0.0.2", "bad | 10.0.0.2 | ip a"),
    ("GLOO_SOCKET_IFNAME", "eth0,bond0", f"bad | no bond0 {THERE_ARE} | ip a"),
    ("GLOO_SOCKET_IFNAME", "eth0,,lo", f"bad | '' (an empty name) {THERE_ARE} | ip a"),
    ("GLOO_SOCKET_IFNAME", "eth1", f"warn | no eth1 {THERE_ARE} | ip a"),
    # Where there is an HCCL_IF_IP, as on this machine, it counts.
    ("HCCL_SOCKET_IFNAME", "=bond0,ib0", f"warn | no =bond0,ib0 {THERE_ARE} | ip a"),
    ("HCCL_IF_BASE_PORT", "", "warn | '' | unset it"),
    ("HCCL_IF_BASE_PORT", "80", "bad | '80' | unset it"),
    ("VLLM_PORT", "tcp://10.0.0.9:8000", "bad | 'tcp://10.0.0.9:8000' | Service"),
]
GREETING = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n"
FAULTS = [  # how it is broken, and the line: state, name, found, and what to do
    (smi(table("A3"), "A3"), "bad | chip | ascend910_9392 (A3) | SOC=ascend910_9392"),
    (smi("| npu-smi 25.5.1   Version: 25.5.1 |\n"), "bad | NPUs | lists none | lspci"),
    (
        lambda m: (m.programs / "npu-smi").unlink(),
        "warn | npu-smi | no npu-smi on PATH | mount /usr/local/bin/npu-smi",
    ),
    (
        smi(f"{GREETING}dcmi failed. ret is -8005\n", status=255),
        "bad | npu-smi | ret is -8005 (status 255) | who uses them",
    ),
    (
        smi(f"{GREETING}it is used. ret is -8020\n", status=255),
        "bad | npu-smi | it is used. ret is -8020 | no right to them",
    ),
    (
        smi("npu-smi: libc_sec.so: cannot open\n", status=127),
        "bad | npu-smi | libc_sec.so: cannot open (status 127) | lib64 of the host",
    ),
    (smi("", status=1), "bad | npu-smi | status 1 | dmesg"),
    (smi(table(health="Alarm")), "warn | NPU 0 | Alarm | npu-smi info -t health -i 0"),
    (
        smi(table(processes=((4711, "VLLM::Worker", 58000),))),
        "bad | NPU 0 | VLLM::Worker (4711, 58000 MB) | ASCEND_RT_VISIBLE_DEVICES",
    ),
    (
        smi(table(processes=((4711, "", 58000),))),
        "bad | NPU 0 | used by process (4711, 58000 MB) | ps -fp PID",
    ),
    (smi(table(used=40000)), "warn | NPU 0 | 40000 of 65536 MB | other containers"),
    (
        lambda m: (m.folder / "root/dev/devmm_svm").unlink(),
        "bad | /dev/devmm_svm | no such file | --device /dev/devmm_svm",
    ),
    (
        lambda m: (
            m.write(f"{ASCEND}/driver/version.info", "Version=24.1.rc3\n"),
            m.write(f"{ASCEND}/firmware/version.info", ""),
            m.npu_smi(table("A2", "24.1.rc3")),
        ),
        "warn | driver | 24.1.rc3 | CANN's release notes",
    ),
    (
        written(f"{ASCEND}/firmware/version.info", "Version=6.3.0.1.240\n"),
        "bad | firmware | 6.3.0.1.240 | one release",
    ),
    (written(CANN_INFO, "version=8.5.0\n"), "bad | CANN | 8.5.0 | install CANN 9.1.0"),
    (unset("ASCEND_HOME_PATH"), "bad | CANN | ASCEND_HOME_PATH is not set | source"),
    (unset("ATB_HOME_PATH"), "bad | NNAL | ATB_HOME_PATH is not set | set_env.sh"),
    (
        lambda m: m.variables.update(
            LD_LIBRARY_PATH=f"{m.variables['LD_LIBRARY_PATH']}:{ASCEND}/cann-8.5.0/lib64"
        ),
        "bad | LD_LIBRARY_PATH | 8.5.0 and 9.1.0 | new shell",
    ),
    (other("torch", "2.9.0"), "bad | torch | 2.9.0 | --no-deps 'torch==2.10.0'"),
    (lambda m: m.remove("torch-npu"), "bad | torch-npu | none is installed | index"),
    (under("torch", "2.9.0"), "warn | torch | over 2.9.0 in | uninstall --yes torch"),
    (
        lambda m: m.install("triton", "3.9.0"),
        "bad | triton-ascend | triton 3.9.0 over | pip uninstall --yes triton",
    ),
    (without("pybind11"), "bad | triton-ascend | pybind11 | pip install"),
    (under("vllm", "0.22.1"), "bad | wheel | vllm 0.22.1 | pip uninstall -y vllm"),
    (
        written("/proc/self/mounts", "shm /dev/shm tmpfs rw,size=65536k 0 0\n"),
        "bad | /dev/shm | 64 MB | --shm-size=1g",
    ),
    (
        written("/proc/self/mounts", "shm /dev/shm tmpfs nosuid,ro,size=4g 0 0\n"),
        "bad | /dev/shm | cannot be written to | mount it so that this user can",
    ),
    (
        written("/etc/hosts", "127.0.0.1 localhost\n"),
        "warn | head | has no address | /etc/hosts",
    ),
    (
        written("/proc/net/tcp", f"{TCP}   0: 0100007F:EA7F 00000000:0000 0A 0\n"),
        "warn | port 60031 | something listens | HCCL_IF_BASE_PORT",
    ),
    *(
        (variable(name, value), line.replace(" | ", f" | {name} | ", 1))
        for name, value, line in VARIABLES
    ),
]


@pytest.fixture
def machine(tmp_path):
    return FakeMachine(tmp_path)


@pytest.mark.parametrize(("spoil", "line"), FAULTS, ids=[line for _, line in FAULTS])
def test_the_fault_is_named_with_its_repair(machine, spoil, line):
    """A server starts in spite of what is a warning, so the status is 0."""
    state, what, found, do = line.split(" | ")
    spoil(machine)
    status, lines = machine.doctor()
    bad = [x for x in lines if x["state"] in ("warn", "bad")]
    named = [x for x in bad if x["what"] == what and found in x["found"]]
    assert len(named) == 1, bad
    assert do in named[0]["do"]
    # Each chip that is not well has a line of its own.
    assert {x["what"].rstrip("01") for x in bad} == {what.rstrip("01")}
    assert {x["state"] for x in bad} == {state}
    assert status == (state == "bad")


def states(check, machine, plan=None, **environ):
    """What a check of the host says of a machine, in this process."""
    looked_at = Machine(machine.folder / "root", environ, None, plan or Plan())
    return [each.state for each in check(looked_at) if isinstance(each, Diagnosis)]


HCCL_RIGHT = ("^docker,virbr", "^=docker0,virbr0", "eth,enp", "=eth0,enp0", "enp,e", "")
HCCL_WRONG = ("enp,bond", "=eth,enp0", "^=eth0,lo", "^e,l", ",eth0", "eth0,", "^", "^=")


def test_the_mark_of_hccl_holds_for_its_whole_list(machine):
    """And one name that fits is enough, as its reference says."""
    for value in HCCL_RIGHT:
        assert states(interfaces, machine, HCCL_SOCKET_IFNAME=value) == [], value
    for value in HCCL_WRONG:
        assert states(interfaces, machine, HCCL_SOCKET_IFNAME=value) != [], value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0,lo,"),
        ("GLOO_SOCKET_IFNAME", "eth0:1"),
        ("TP_SOCKET_IFNAME", "of torch's RPC, which nothing here starts"),
        ("HCCL_HOST_SOCKET_PORT_RANGE", "61000-61050"),
        ("ASCEND_RT_VISIBLE_DEVICES", "1"),
        ("VLLM_PORT", "9000"),
    ],
)
def test_what_its_owner_takes_is_right(machine, name, value):
    machine.write("/proc/net/tcp", f"{TCP}   0: 0100007F:EA61 00000000:0000 0A 0\n")
    ports = ("HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_IF_BASE_PORT")
    machine.variables.update({ports[1]: "50000", name: value})
    assert [x for x in machine.doctor()[1] if x["state"] != "ok"] == []


def test_a_table_is_read_however_npu_smi_ends(machine):
    machine.npu_smi(table(), status=1)
    assert [x for x in machine.doctor()[1] if x["state"] != "ok"] == []


def test_the_worst_comes_last_where_a_pods_message_has_it():
    states = ("ok", "bad", "ok", "unknown", "warn")
    lines = [Diagnosis(str(i), state, "") for i, state in enumerate(states)]
    *shown, _ = show(lines, as_json=False).splitlines()
    assert [line.split()[1] for line in shown] == ["0:", "2:", "3:", "4:", "1:"]


def test_a_name_is_not_missed_where_no_interface_can_be_seen(machine):
    shutil.rmtree(machine.folder / "root/sys/class/net")
    lines = [x for x in machine.doctor()[1] if x["state"] != "ok"]
    assert [(x["what"], x["state"]) for x in lines] == [("interfaces", "unknown")]


@pytest.mark.skipif(os.getuid() != 0, reason="must become another user")
def test_a_device_that_may_not_be_opened(machine):
    for folder in [machine.folder, *machine.folder.parents]:
        if folder.stat().st_uid == os.getuid() and folder != Path("/tmp"):
            folder.chmod(0o755)
    device = machine.folder / "root/dev/davinci1"
    device.chmod(0o600)
    bad = [x for x in machine.doctor(user=4321)[1] if x["state"] == "bad"]
    named = [x for x in bad if x["what"] == "/dev/davinci1"]
    assert named[0]["found"] == "user 4321 may not open it"
    assert "--group-add 0" in named[0]["do"]


IPV6 = """fd000000000000000000000000000001 02 40 00 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
"""


@pytest.mark.parametrize(
    ("address", "state"),
    [
        ("::1", "ok"),
        ("fd00::1", "ok"),
        ("FD00:0::1%eth0", "ok"),
        ("[::1]", "ok"),
        ("::ffff:10.0.0.1", "ok"),
        ("127.0.1.1", "ok"),
        ("fd00::2", "bad"),
    ],
)
def test_addresses_of_both_kinds_are_told_from_those_of_others(machine, address, state):
    """Of the head, as vLLM's option, and of HCCL, as a variable."""
    machine.write("/proc/net/if_inet6", IPV6)
    plan = Plan(ranks=2, local_ranks=2, address=address)
    assert states(names, machine, plan) == ["ok", state]
    found = states(interfaces, machine, HCCL_IF_IP=address)
    assert found == ["bad"] * (state == "bad" or address == "127.0.1.1")


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
def test_a_healthy_machine_gets_no_false_alarm(tmp_path, name):
    machine = FakeMachine(tmp_path, **HEALTHY[name])
    status, lines = machine.doctor("--fail-on", "unknown")
    assert [x for x in lines if x["state"] != "ok"] == []
    assert status == 0
    assert {"wheel", "requirements", "ports"} <= {x["what"] for x in lines}


@pytest.mark.parametrize("device", ["A2", "A3", "310P", "A5"])
@pytest.mark.parametrize("version", ["24.1.rc3.7", "26.0.rc2"])
def test_every_form_of_npu_smi_is_read(device, version):
    text = table(device, version, processes=((815, "python3", 12417),))
    found = read(text)
    assert found.version == version
    npus = [(each.number, each.health, each.used_mb) for each in found.npus]
    assert npus == [(0, "OK", 3406), (1, "OK", 3406)]
    (process,) = found.processes
    first = found.npus[0]
    assert (process.pid, process.used_mb) == (815, 12417)
    assert (process.card, process.chip) == (first.card, first.chip)
