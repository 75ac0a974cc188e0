"""The command `env`: a virtual environment with the built reference wheel in it.

Tests on the installed wheel and the demo share it. It is left alone while the wheel,
the constraints and the extra packages are the ones it was made from.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import venv
from pathlib import Path

import tomlkit

from balance_tools.distribution import Choice
from balance_tools.errors import ToolError
from balance_tools.files import exclusive, remove_tree, sha256_of
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.run import to_log, to_terminal
from balance_tools.wheel.build import build_wheel

CONSTRAINTS = Path("tests", "constraints.txt")
GROUP = "engine"
STAMP = ".made-from"
LONGEST_TMPDIR = 70
"""Bytes; the path of a Unix socket has at most 107, of which vLLM adds 37."""


def make_env(paths: Paths, wheel: Path) -> Path:
    """Create or update the environment for `wheel`; returns its folder.

    A changed wheel with the same requirements takes a second, a new environment one or
    two minutes.
    """
    if (length := len(os.fsencode(tempfile.gettempdir()))) > LONGEST_TMPDIR:
        raise ToolError(
            f"TMPDIR: expected a path of at most {LONGEST_TMPDIR} bytes, for the "
            f"engine makes Unix sockets in it, found {length}; say TMPDIR=/tmp"
        )
    folder = paths.env / "reference"
    constraints = paths.root / CONSTRAINTS
    extra = group_requirements(paths.root / "pyproject.toml", GROUP)
    inputs = [sha256_of(wheel), sha256_of(constraints), *extra]
    digest = hashlib.sha256("\n".join(inputs).encode()).hexdigest()
    with exclusive(paths.env / ".reference.lock"):
        stamp = folder / STAMP
        if stamp.is_file() and stamp.read_text() == digest:
            return folder
        fresh = not stamp.is_file()
        stamp.unlink(missing_ok=True)
        # Byte code is made afterwards, on all processors: pip would use one.
        options = ("--no-compile", f"--constraint={constraints}")
        python = folder / "bin" / "python"
        if fresh:
            remove_tree(folder)
            venv.create(folder, with_pip=True)
        with progress(f"installing {wheel.name} into {folder}", 1, "step"):
            if not fresh:
                # The same version is never installed twice unless it is asked for.
                pip(python, "uninstall", "--yes", "vllm")
            pip(python, "install", *options, str(wheel), *extra)
            to_terminal([python, "-m", "compileall", "-qq", "-j0", folder / "lib"])
        stamp.write_text(digest)
    return folder


def group_requirements(pyproject: Path, group: str) -> list[str]:
    data = tomlkit.parse(pyproject.read_text(encoding="utf-8")).unwrap()
    return [str(line) for line in data["dependency-groups"][group]]


def pip(python: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python)]
    command += ["--disable-pip-version-check", *arguments]
    if sys.stderr.isatty():
        failed, reason = to_terminal(command), "it says why above"
    else:
        with tempfile.TemporaryDirectory() as folder:
            failed = to_log(command, log := Path(folder, "pip.log"))
            _, *reasons = log.read_text(encoding="utf-8").partition("ERROR: ")
        lines = map(str.strip, "".join(reasons).splitlines())
        reason = " / ".join(filter(None, lines))
    if failed:
        raise ToolError(
            f"{python}: expected pip to do {arguments[0]!r}, found that it failed: "
            f"{reason}; fix that and run this again"
        )


def run(args: argparse.Namespace) -> int:
    paths = Paths.find()
    print(make_env(paths, build_wheel(paths, Choice(), paths.dist)))
    return 0
