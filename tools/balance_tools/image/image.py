"""The command `image`: one container image from one finished wheel.

The wheel says which chip it is for, so it also says which base image it needs.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.run import to_terminal
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine

REFERENCE_BASE, REFERENCE_SYSTEM = "debian:bookworm-slim", "bookworm"
DOCKERFILES = {
    "A2": "Dockerfile",
    "A3": "Dockerfile.a3",
    "_310P": "Dockerfile.310p",
    "A5": "Dockerfile.a5",
}
"""Device as the plugin calls it, to the file in its sdist that names a base with CANN
and its nnal, without the driver, which is the host's."""
SYSTEMS = {"ubuntu": "", "openeuler": ".openEuler"}
"""Operating system to the end of that file's name."""
FROM = re.compile(r"^FROM (\S+-([a-z]+[0-9.]+)-py3\.([0-9]+))$", re.MULTILINE)
"""The base image, its system, and the minor version of its Python."""
BUILD_RECORD = "vllm_balance/build.json"
ENGINES = ("docker", "podman", "buildah")
CONSTRAINTS = {
    "reference": "tests/constraints.txt",
    "ascend": "docker/constraints-ascend.txt",
}
PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


@dataclass(frozen=True)
class Image:
    """What is built, before it is built."""

    wheel: str
    """Its file name in dist/."""
    target: str
    platform: str | None
    """As container engines call a machine; None for that of the engine."""
    version: str
    revision: str
    system: str
    """The operating system as it stands in the tag of the image."""
    base: str

    @property
    def name(self) -> str:
        """The name with a tag, which may not hold a plus sign."""
        return f"vllm-balance:{self.version.replace('+', '-')}-{self.system}"

    def command(self, engine: str, *options: str) -> list[str]:
        """The command that builds it, to be run at the root of the repository."""
        arguments = {
            "BASE": self.base,
            "TARGET": self.target,
            "WHEEL": f"dist/{self.wheel}",
            "CONSTRAINTS": CONSTRAINTS[self.target],
            "VERSION": self.version,
            "REVISION": self.revision,
        }
        command = [engine, "build", "--file", "docker/Dockerfile", "--tag", self.name]
        if self.platform is not None:
            command += ["--platform", self.platform]
        for name, value in arguments.items():
            command += ["--build-arg", f"{name}={value}"]
        if engine != "docker":
            # The other format has no health check.
            command += ["--format", "docker"]
        return [*command, *options, "."]


def plan_image(paths: Paths, wheel: Path, system: str, base: str | None) -> Image:
    """Work out the image for a wheel.

    Args:
        paths: The repository.
        wheel: One of ours.
        system: One of SYSTEMS.
        base: Replaces the base image that upstream names.

    Raises:
        ToolError: the image and the wheel do not fit.
    """
    wheel = wheel.resolve()
    dist = paths.root / "dist"
    if wheel.parent != dist.resolve():
        raise ToolError(
            f"{wheel}: expected a wheel in {dist}, which is what the build of "
            "the image sees, found it elsewhere; copy it there"
        )
    record = read_record(wheel)
    if base is None:
        base, system = choose_base(paths, wheel, record, system)
    else:
        system = "custom"
    revision = record["commit"] or "unknown"
    return Image(
        wheel=wheel.name,
        target=record["target"],
        platform=PLATFORMS.get(record["arch"] or ""),
        version=record["distributions"]["vllm"],
        revision=f"{revision}-dirty" if record["dirty"] else revision,
        system=system,
        base=base,
    )


def choose_base(
    paths: Paths, wheel: Path, record: Mapping[str, Any], system: str
) -> tuple[str, str]:
    """The base image for a wheel, and its system as it stands in a tag."""
    if record["target"] == "reference":
        return REFERENCE_BASE, REFERENCE_SYSTEM
    if system not in SYSTEMS:
        raise ToolError(
            f"--os: expected one of {', '.join(SYSTEMS)}, found {system!r}; choose one "
            "of them"
        )
    pristine = ensure_pristine(load_lock(paths.lock).vllm_ascend, paths)
    dockerfile = pristine / (DOCKERFILES[record["device"]] + SYSTEMS[system])
    text = dockerfile.read_text(encoding="utf-8") if dockerfile.is_file() else ""
    found = FROM.search(text)
    if found is None:
        raise ToolError(
            f"{dockerfile}: expected a line FROM …-SYSTEM-py3.N that names the base "
            "image, found none; name it with --base"
        )
    base, name, minor = found.groups()
    tags = {tag.interpreter for tag in parse_wheel_filename(wheel.name)[3]}
    if f"cp3{minor}" not in tags:
        raise ToolError(
            f"{wheel}: expected a wheel for cp3{minor}, the Python of the base image "
            f"{base}, found one for {', '.join(sorted(tags))}; make such a wheel, or "
            "name another base with --base"
        )
    return base, name


def read_record(wheel: Path) -> dict[str, Any]:
    """The build record in a wheel, which must be one of ours."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            record: dict[str, Any] = json.loads(archive.read(BUILD_RECORD))
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise ToolError(
            f"{wheel}: expected a wheel that this project built, found {error}; make "
            "one with `make wheel`"
        ) from error
    return record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `image`."""
    add = parser.add_argument
    add("wheel", type=Path, metavar="WHEEL")
    add("--os", default="ubuntu", help="ubuntu (default) or openeuler")
    add("--base", help="base image; a digest pins it: NAME@sha256:…")
    add("--engine", choices=ENGINES, help="default: the first found")
    add("--print", action="store_true", help="print the command, do not run it")
    text = "more options for the engine, in one word: '--secret id=pip,src=FILE'"
    add("--options", default="", help=text)


def run(args: argparse.Namespace) -> int:
    """Run `image`."""
    paths = Paths.find()
    image = plan_image(paths, args.wheel, args.os, args.base)
    engine = args.engine or next(filter(shutil.which, ENGINES), None)
    if engine is None:
        raise ToolError(
            f"--engine: expected one of {', '.join(ENGINES)} on PATH, found none; "
            "install one"
        )
    command = image.command(engine, *shlex.split(args.options))
    if args.print:
        print(shlex.join(command))
        return 0
    if to_terminal(command, cwd=paths.root) != 0:
        raise ToolError(
            f"{image.name}: expected {engine} to build the image, found that it "
            "failed; read what it wrote above"
        )
    print(image.name)
    return 0
