"""The command `wheel`: from a checkout to finished, checked wheels."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from balance_tools.distribution import (
    ARCHES,
    KERNELS,
    PYTHONS,
    SETTINGS_NAME,
    TARGETS,
    Choice,
    load_settings,
)
from balance_tools.errors import ToolError
from balance_tools.files import exclusive, remove_tree, replacing, sha256_of
from balance_tools.kernels.from_source import build_kernels
from balance_tools.kernels.prebuilt import stage_kernels
from balance_tools.kernels.toolchain import ask_python3
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.run import tail_of, to_log
from balance_tools.upstream.lock import load_lock
from balance_tools.vendoring.vendor import vendor
from vllm_balance.cores import usable_cores

ALL = [
    Choice(),
    *(Choice("ascend", python, arch) for arch in ARCHES for python in PYTHONS),
]
THIS_PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
OF_THIS_PYTHON = Choice("ascend", THIS_PYTHON, "x86_64")
HERE = [choice for choice in ALL if choice in (Choice(), OF_THIS_PYTHON)]
"""The reference wheel, and the Ascend wheel that tests install into this Python."""


def build_wheel(paths: Paths, choice: Choice, out: Path) -> Path:
    (wheel,) = build_wheels(paths, [choice], out)
    return wheel


def build_wheels(paths: Paths, choices: Sequence[Choice], out: Path) -> list[Path]:
    """Build wheels into `out`, as many at once as there are processors.

    Brings the vendored trees up to date and fetches or compiles kernels first. An
    older wheel of the same name is replaced when the new one is complete.

    Returns:
        Their paths, in the order of the choices.
    """
    targets = load_settings(paths.root / SETTINGS_NAME).targets
    lock = load_lock(paths.lock)
    with exclusive(paths.build / ".wheel.lock"):
        packages = {p: None for c in choices for p in targets[c.target].packages}
        for line in vendor(paths, lock, list(packages)):
            print(line, file=sys.stderr)
        for choice in choices:
            device_type = targets[choice.target].device_type
            if choice.from_source:
                build_kernels(paths, lock, choice)
            elif device_type is not None:
                stage_kernels(paths, lock, choice, device_type)
        names = ", ".join(choice.name for choice in choices)
        with (
            progress(f"building {names}", len(choices), "wheel") as report,
            ThreadPoolExecutor(usable_cores()) as pool,
        ):
            built = []
            for wheel in pool.map(partial(_run_build, paths), choices):
                with replacing(out / wheel.name) as part:
                    shutil.move(wheel, part)
                built.append(out / wheel.name)
                report(len(built))
    return built


def _run_build(paths: Paths, choice: Choice) -> Path:
    """Run the standard build front end, which asks setup.py; returns the wheel."""
    out = paths.build / "wheel" / f"{choice.name}-dist"
    log = paths.build / "wheel" / f"{choice.name}.log"
    remove_tree(out)
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    command += ["--outdir", str(out), str(paths.root)]
    # What would have setuptools take another distutils, which writes other metadata.
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SETUPTOOLS_")}
    status = to_log(command, log, env=clean | choice.environment())
    if status != 0:
        for line in log.read_text(encoding="utf-8").splitlines():
            if line.startswith("error: "):
                raise ToolError(line.removeprefix("error: "))
        raise ToolError(
            f"{log}: expected a wheel for {choice.name}, found that its build failed: "
            f"{tail_of(log)}; read the log"
        )
    (wheel,) = out.glob("*.whl")
    return wheel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, machine = parser.add_argument, platform.machine()
    add("--target", choices=TARGETS, default="reference", help="default: reference")
    text = "ascend; default: cp311, with kernels from source that of python3"
    add("--python", choices=PYTHONS, help=text)
    arch = machine if machine in ARCHES else "x86_64"
    text = "ascend; default: this machine's"
    add("--arch", choices=ARCHES, default=arch, help=text)
    text = "ascend; default: prebuilt"
    add("--kernels", choices=KERNELS, default="prebuilt", help=text)
    text = "kernels from source: ascend910b1"
    add("--soc", metavar="CHIP", default="", help=text)
    add("--all", action="store_true", help="the reference and the six Ascend wheels")
    text = "the reference, and the Ascend wheel that the tests install here"
    add("--here", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    paths = Paths.find()
    choices = ALL if args.all else HERE if args.here else [choice_of(args)]
    for wheel in build_wheels(paths, choices, paths.dist):
        print(f"{sha256_of(wheel)}  {wheel}")
    return 0


def choice_of(args: argparse.Namespace) -> Choice:
    choice = Choice(args.target, "cp311", args.arch, args.kernels, args.soc)
    if args.soc and not choice.from_source:
        raise ToolError(
            "--soc: expected a chip only for an Ascend wheel with kernels from source, "
            f"found {args.soc!r}; add KERNELS=source, or leave it out: the prebuilt "
            "kernels are for Atlas A2"
        )
    default = ask_python3()["tag"] if choice.from_source else choice.python
    return replace(choice, python=args.python or default)
