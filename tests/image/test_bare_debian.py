"""The two commands of the README, where a newcomer may be: on a bare Debian.

Their home has a space and a letter that is not ASCII in its path, and no HOME names it;
they are not root, nobody else may read their files, and the language is C. The machine
is a container with 5 GB of memory and 64 MB of /dev/shm.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from balance_tools.files import remove_tree
from balance_tools.paths import Paths

ROOT = Path(__file__).resolve().parents[2]
NEWCOMER = 1000
HOME = "/home/nö body"
PACKAGES = ("python3", "python3-venv", "git", "make", "ca-certificates")
# Each does one of them, for each takes six minutes. PYTHON_TESTS in the Makefile says
# what of the unit tests is left out. The demo needs a build of torch for CPUs, which
# not every index has for every Python.
COMMANDS = {
    "bookworm": "demo",  # Debian 12, Python 3.11.2
    "trixie": "test-python",  # Debian 13, Python 3.13
}


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("suite", COMMANDS)
def test_a_newcomer_runs_the_commands(suite, podman, debian, pip_settings, tmp_path):
    clone = tmp_path / "vllm balance"
    subprocess.run(
        ["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True
    )
    shutil.copytree(Paths(ROOT).cache, Paths(clone).cache)  # downloads
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, NEWCOMER, NEWCOMER, follow_symlinks=False)
    settings, volumes = pip_settings
    make = f"umask 077 && exec make {COMMANDS[suite]}"
    try:
        result = podman.run(
            f"--user={NEWCOMER}:{NEWCOMER}",
            "--memory=5g",
            "--shm-size=64m",
            f"--volume={tmp_path}:{HOME}",
            f"--workdir={HOME}/{clone.name}",
            f"--volume={settings}:/etc/pip.conf:ro",
            *volumes,
            "--env=LANG=C",
            debian(suite, *PACKAGES),
            *("env", "--unset=HOME", "sh", "-c", make),
        )
    finally:
        remove_tree(clone)
    print(result.stdout, result.stderr)
    assert result.returncode == 0
    assert "Traceback" not in result.stdout + result.stderr
