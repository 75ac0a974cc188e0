"""The units are ones that systemd takes, and their wrapper runs what it is given."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SYSTEMD = Path(__file__).parents[3] / "deploy/systemd"
UNITS = ("vllm-head.service", "vllm-headless@.service")
INSTANCES = ("vllm-head.service", "vllm-headless@2.service")
TARGETS = ("sysinit", "basic", "shutdown", "multi-user", "network-online")


@pytest.fixture
def root(tmp_path):
    """The files of a machine, as docs/deployment.md says how to install them."""
    units = tmp_path / "etc/systemd/system"
    programs = (tmp_path / "usr/local/lib/vllm", tmp_path / "opt/vllm/bin")
    for folder in (units, tmp_path / "etc/vllm", *programs):
        folder.mkdir(parents=True)
    for name in UNITS:
        shutil.copy(SYSTEMD / name, units)
    for name in TARGETS:
        (units / f"{name}.target").write_text(f"[Unit]\nDescription={name}\n")
    shutil.copy(SYSTEMD / "vllm.env", tmp_path / "etc/vllm")
    shutil.copy(SYSTEMD / "with-cann", programs[0])
    (tmp_path / "etc/passwd").write_text("vllm:x:999:999::/:/bin/sh\n")
    return tmp_path


def complaints(root):
    command = ["systemd-analyze", "verify", f"--root={root}", *INSTANCES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="no systemd-analyze: install systemd"
)
def test_systemd_has_nothing_to_complain_about(root):
    assert not complaints(root)
    unit = root / "etc/systemd/system" / UNITS[0]
    unit.write_text(unit.read_text().replace("TimeoutStopSec", "TimeoutStop"))
    assert "Unknown key 'TimeoutStop'" in complaints(root)


def test_the_wrapper_sources_what_is_there_and_keeps_the_arguments(tmp_path):
    """Files that fail or read arguments, as the vendor's do, change nothing."""
    for folder in ("ascend-toolkit", "nnal/atb"):
        (tmp_path / folder).mkdir(parents=True)
        script = 'export FOUND="$FOUND($*)"; false\n'
        (tmp_path / folder / "set_env.sh").write_text(script)
    program = ["sh", "-c", 'echo "$FOUND|$0|$1"', "a b", "c"]

    def run(home, **more):
        command = [str(SYSTEMD / "with-cann"), *program]
        environment = os.environ | {"ASCEND_HOME": str(home)} | more
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert run(tmp_path).stdout == "()(--cxx_abi=1)|a b|c\n"
    assert run(tmp_path / "none", WITHOUT_CANN="1").stdout == "|a b|c\n"
    refused = run(tmp_path / "none")
    assert (refused.returncode, refused.stdout) == (1, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"with-cann: cannot start: there is no {tmp_path}/none/asce")


@pytest.mark.parametrize("name", UNITS)
def test_a_stop_has_the_time_that_it_needs(name):
    options = (SYSTEMD / "vllm.env").read_text()
    (drain,) = re.findall(r"--shutdown-timeout (\d+)", options)
    (limit,) = re.findall(r"^TimeoutStopSec=(\d+)$", (SYSTEMD / name).read_text(), re.M)
    assert int(limit) >= int(drain) + 10  # docs/operations.md


@pytest.mark.parametrize("name", UNITS)
def test_the_doctor_looks_with_the_environment_of_the_server(name):
    unit = (SYSTEMD / name).read_text()
    wrapper, program = "/usr/local/lib/vllm/with-cann", "/opt/vllm/bin"
    assert f"\nExecStartPre={wrapper} {program}/vllm-balance doctor\n" in unit
    assert f"\nExecStart={wrapper} {program}/vllm serve" in unit
    assert unit.index("ExecStartPre=") < unit.index("ExecStart=")
