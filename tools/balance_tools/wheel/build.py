"""The command `wheel`: from a checkout to finished, checked wheels."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

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
from balance_tools.kernels.from_source import build_kernels, for_python3
from balance_tools.kernels.prebuilt import stage_kernels
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.run import tail_of, to_log
from balance_tools.upstream.lock import load_lock
from balance_tools.vendoring.vendor import vendor

ALL = [
    Choice(),
    *(Choice("ascend", python, arch) for arch in ARCHES for python in PYTHONS),
]


def build_wheel(paths: Paths, choice: Choice, out: Path) -> Path:
    """Build one wheel into `out`; returns its path."""
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
            ThreadPoolExecutor(os.cpu_count()) as pool,
        ):
            built = []
            for made in pool.map(partial(_run_build, paths), choices):
                with replacing(out / made.name) as part:
                    shutil.move(made, part)
                built.append(out / made.name)
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
    others = {k: v for k, v in os.environ.items() if not k.startswith(VARIABLE_PREFIX)}
    environment = others | choice.environment()
    status = to_log(command, log, env=environment)
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
    """The arguments of `wheel`."""
    add = parser.add_argument
    add("--target", choices=TARGETS, help="default: reference")
    text = "ascend; default: cp311, with kernels from source that of python3"
    add("--python", choices=PYTHONS, help=text)
    add("--arch", choices=ARCHES, help="ascend; default: this machine's")
    add("--kernels", choices=KERNELS, help="ascend; default: prebuilt")
    add("--soc", metavar="CHIP", help="kernels from source: ascend910b1")
    add("--all", action="store_true", help="the reference and the six Ascend wheels")


def run(args: argparse.Namespace) -> int:
    """Build, and print the sha256 and the path of each wheel."""
    paths = Paths.find()
    for wheel in build_wheels(paths, ALL if args.all else [_choice(args)], paths.dist):
        print(f"{sha256_of(wheel)}  {wheel}")
    return 0


def _choice(args: argparse.Namespace) -> Choice:
    chosen = {
        VARIABLE_PREFIX + name.upper(): value
        for name in ("target", "python", "arch", "kernels", "soc")
        if (value := getattr(args, name))
    }
    variables = {**os.environ, **chosen}
    choice = choice_from(variables)
    if choice.from_source and not variables.get(f"{VARIABLE_PREFIX}PYTHON"):
        choice = for_python3(choice)
    return choice
