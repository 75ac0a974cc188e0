"""The command `env`: a virtual environment with the built reference wheel in it.

Tests on the installed wheel and the demo share it. It is left alone while the wheel,
the constraints and the extra packages are the ones it was made from.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import venv
from contextlib import suppress
from pathlib import Path

import tomlkit

from balance_tools.distribution import SETTINGS_NAME, Choice, load_settings
from balance_tools.errors import ToolError
from balance_tools.files import exclusive, remove_tree, sha256_of
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.run import to_log, to_terminal
from balance_tools.upstream.index import Index, RefusedError
from balance_tools.wheel.build import build_wheel

CONSTRAINTS = Path("tests", "constraints.txt")
GROUP = "engine"
STAMP = ".made-from"
GIGABYTE = 10**9
LONGEST_TMPDIR = 70
"""In bytes: a Unix socket has 107 for its path, and vLLM adds 37."""
BESIDE_TORCH_GB = 3
"""The disk that an environment takes, torch and what it brings left out."""


def make_env(paths: Paths, wheel: Path) -> Path:
    """Create or update the environment for `wheel`; returns its folder.

    A changed wheel with the same requirements takes a second, a new environment one or
    two minutes.

    Raises:
        ToolError: pip failed, or what runs in it would fail on this machine.
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
    wanted = hashlib.sha256("\n".join(inputs).encode()).hexdigest()
    with exclusive(paths.env / ".reference.lock"):
        stamp = folder / STAMP
        if stamp.is_file() and stamp.read_text() == wanted:
            return folder
        fresh = not stamp.is_file()
        stamp.unlink(missing_ok=True)
        # Byte code is made afterwards, on all processors: pip would use one.
        options = ("--no-compile", f"--constraint={constraints}")
        python = folder / "bin" / "python"
        if fresh:
            remove_tree(folder)
            venv.create(folder, with_pip=True)
            target = load_settings(paths.root / SETTINGS_NAME).targets["reference"]
            look_ahead(python, *options, *target.requires)
        with progress(f"installing {wheel.name} into {folder}", 1, "step"):
            if not fresh:
                # The same version is never installed twice unless it is asked for.
                pip(python, "uninstall", "--yes", "vllm")
            pip(python, "install", *options, str(wheel), *extra)
            to_terminal([python, "-m", "compileall", "-qq", "-j0", folder / "lib"])
        stamp.write_text(wanted)
    return folder


def group_requirements(pyproject: Path, group: str) -> list[str]:
    """The requirements of a dependency group."""
    data = tomlkit.parse(pyproject.read_text(encoding="utf-8")).unwrap()
    return [str(line) for line in data["dependency-groups"][group]]


def look_ahead(python: Path, *wanted: str) -> None:
    """Say what torch is about to cost, before it does.

    Args:
        python: of the environment that it is going to be installed in.
        wanted: its requirement, and options of `pip install`.

    Raises:
        ToolError: pip cannot have it, or the disk has no room for it.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        progress("asking pip for torch", 1, "step"),
    ):
        report = Path(folder, "report.json")
        pip(python, "install", "--dry-run", f"--report={report}", *wanted)
        packages = json.loads(report.read_text(encoding="utf-8"))["install"]
        index, size = Index(), 0
        for package in packages:
            # An index that does not say a size here says what is wrong to pip, later.
            with (
                suppress(RefusedError),
                index.open(package["download_info"]["url"]) as (length, _),
            ):
                size += length or 0
    gigabytes = size / GIGABYTE
    if gigabytes > 1:
        print(
            f"pip is about to fetch {gigabytes:.1f} GB for {wanted[-1]}: a build for "
            "GPUs, with libraries that nothing here uses. To save that, stop this, "
            "configure pip with an index that has the CPU build (`pip config set "
            "global.extra-index-url URL`), and run it again",
            file=sys.stderr,
        )
    needed = BESIDE_TORCH_GB + 2 * gigabytes  # unpacked, it takes twice as much
    if (free := shutil.disk_usage(python.parent).free / GIGABYTE) < needed:
        raise ToolError(
            f"{python.parents[1]}: expected {needed:.1f} GB of free disk for this "
            f"environment, found {free:.1f}; make room and run this again"
        )


def pip(python: Path, *arguments: str) -> None:
    """Let the tools' pip work on another environment; it must succeed.

    Raises:
        ToolError: with the reason that pip gives.
    """
    command = [sys.executable, "-m", "pip", "--python", str(python)]
    command += ["--disable-pip-version-check", *arguments]
    if sys.stderr.isatty():
        failed, reason = to_terminal(command), "it says why above"
    else:
        with tempfile.TemporaryDirectory() as folder:
            failed = to_log(command, log := Path(folder, "pip.log"))
            _, *said = log.read_text(encoding="utf-8").partition("ERROR: ")
        lines = map(str.strip, "".join(said).splitlines())
        reason = " / ".join(filter(None, lines))
    if failed:
        raise ToolError(
            f"{python}: expected pip to do {arguments[0]!r}, found that it failed: "
            f"{reason}; mend that and run this again"
        )


def run(args: argparse.Namespace) -> int:
    """Run `env`."""
    paths = Paths.find()
    print(make_env(paths, build_wheel(paths, Choice(), paths.dist)))
    return 0
