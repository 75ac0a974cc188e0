"""The commands `wheel` and `wheels`: from a checkout to finished, checked wheels."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from balance_tools import run
from balance_tools.distribution import (
    ARCHES,
    KERNELS,
    PYTHONS,
    SETTINGS_NAME,
    TARGETS,
    VARIABLE_PREFIX,
    Choice,
    choice_from,
    load_settings,
)
from balance_tools.errors import ToolError
from balance_tools.files import exclusive, remove_tree, replacing, sha256_of
from balance_tools.kernels.from_source import build_kernels
from balance_tools.kernels.prebuilt import stage_kernels
from balance_tools.kernels.toolchain import python_tag
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.upstream.lock import load_lock
from balance_tools.vendoring.vendor import vendor

ALL = [
    Choice(),
    *(Choice("ascend", python, arch) for arch in ARCHES for python in PYTHONS),
]


def build_wheel(paths: Paths, choice: Choice, out: Path) -> Path:
    """Build one wheel into `out`; returns its path.

    Brings the vendored trees up to date and fetches or compiles kernels first. An
    older wheel of the same name is replaced when the new one is complete.
    """
    target = load_settings(paths.root / SETTINGS_NAME).targets[choice.target]
    lock = load_lock(paths.lock)
    with exclusive(paths.build / ".wheel.lock"):
        for line in vendor(paths, lock, target.packages):
            print(line, file=sys.stderr)
        if choice.from_source:
            build_kernels(paths, lock, choice)
        elif target.device_type is not None:
            stage_kernels(paths, lock, choice, target.device_type)
        made = _run_build(paths, choice)
        with replacing(out / made.name) as part:
            shutil.move(made, part)
    return out / made.name


def _run_build(paths: Paths, choice: Choice) -> Path:
    """Run the standard build front end, which asks setup.py; returns the wheel."""
    out = paths.build / "wheel" / f"{choice.name}-dist"
    log = paths.build / "wheel" / f"{choice.name}.log"
    remove_tree(out)
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    command += ["--outdir", str(out), str(paths.root)]
    environment = _without_choice(os.environ) | choice.environment()
    with progress(f"building {choice.name}", 1, "wheel"):
        status = run.to_log(command, log, env=environment)
    if status != 0:
        for line in log.read_text(encoding="utf-8").splitlines():
            if line.startswith("error: "):
                raise ToolError(line.removeprefix("error: "))
        raise ToolError(
            f"{log}: expected a wheel for {choice.name}, found that its build failed: "
            f"{run.tail_of(log)}; read the log"
        )
    (wheel,) = out.glob("*.whl")
    return wheel


def _without_choice(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in environment.items()
        if not key.startswith(VARIABLE_PREFIX)
    }


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `wheel` and `wheels`."""
    summary = "Build one wheel and print its path and sha256."
    one = subparsers.add_parser("wheel", help=summary, description=summary)
    one.add_argument("--target", choices=TARGETS, help="default: reference")
    one.add_argument(
        "--python",
        choices=PYTHONS,
        help="ascend; default: cp311, with kernels from source that of python3",
    )
    one.add_argument("--arch", choices=ARCHES, help="ascend; default: this machine's")
    one.add_argument("--kernels", choices=KERNELS, help="ascend; default: prebuilt")
    one.add_argument("--soc", metavar="CHIP", help="kernels from source: ascend910b1")
    summary = "Build the reference wheel and all Ascend wheels."
    every = subparsers.add_parser("wheels", help=summary, description=summary)
    for parser in (one, every):
        parser.add_argument(
            "--out", type=Path, metavar="DIR", help="where to; default: dist"
        )
    one.set_defaults(run=_run_one)
    every.set_defaults(run=_run_all)


def _run_one(args: argparse.Namespace) -> int:
    chosen = {
        VARIABLE_PREFIX + name.upper(): value
        for name in ("target", "python", "arch", "kernels", "soc")
        if (value := getattr(args, name))
    }
    variables = {**os.environ, **chosen}
    choice = choice_from(variables)
    if choice.from_source and not variables.get(f"{VARIABLE_PREFIX}PYTHON"):
        choice = replace(choice, python=python_tag())
    return _build([choice], args.out)


def _run_all(args: argparse.Namespace) -> int:
    return _build(ALL, args.out)


def _build(choices: list[Choice], out: Path | None) -> int:
    paths = Paths.find()
    for choice in choices:
        wheel = build_wheel(paths, choice, out or paths.dist)
        print(f"{sha256_of(wheel)}  {wheel}")
    return 0
