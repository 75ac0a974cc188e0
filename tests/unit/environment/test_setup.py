"""`make` on Pythons that will do or not, and where nothing can be written."""

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from balance_tools.__main__ import main
from balance_tools.paths import Paths

FILES = ("Makefile", "pyproject.toml", "tests/constraints.txt")
# It says another version, and stops where the environment would be made.
STAND_IN = """#!/bin/sh
[ "$1" = -c ] || exit 9
exec '{python}' -c 'import sys; sys.version_info = {version}; exec(sys.argv[2])' "$@"
"""


def make(folder, version):
    """`make lint` as a newcomer, whose python3 has this version."""
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(Paths.find().root / name, folder / name)
    python = folder / "python3"
    python.write_text(STAND_IN.format(python=sys.executable, version=version))
    python.chmod(0o755)
    return subprocess.run(
        ["make", "lint", f"PYTHON3={python}"],
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("version", [(3, 9, 25), (3, 14, 0)])
def test_another_python_gets_one_sentence(version, tmp_path):
    run = make(tmp_path, version)
    said, ended = run.stderr.splitlines()
    found = f"{version[0]}.{version[1]}, expected 3.10 to 3.13; run make PYTHON3="
    assert f"is Python {found}" in said
    assert "***" in ended  # of make


@pytest.mark.parametrize("version", [(3, 10, 0), (3, 13, 99)])
def test_these_pythons_will_do(version, tmp_path):
    assert "Error 9" in make(tmp_path, version).stderr


def test_a_folder_that_cannot_be_written_is_one_sentence(monkeypatch, capsys):
    def demo(paths):
        raise OSError(errno.EROFS, "read-only", str(paths.build))

    monkeypatch.setattr("balance_tools.demo.demo.demo", demo)
    assert main(["demo"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {Path.cwd()}: expected to write in it, found ")
    assert "found read-only for " in line
