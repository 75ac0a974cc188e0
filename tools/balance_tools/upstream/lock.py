"""The lock `upstream.toml`: every upstream file by name, size and sha256.

It names files, never places: where they come from is pip's configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import tomlkit
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version
from tomlkit.exceptions import TOMLKitError

from balance_tools.errors import ToolError
from balance_tools.text import read_text

HEADER = """\
The lock: the upstream files this distribution is made from, by name, size in bytes
and sha256. Written by `tools/rebase.sh`; where the files are found is pip's own
configuration.
"""
NOTES = {
    "vllm": "The sources below vllm/.",
    "vllm_ascend": "The sources below vllm_ascend/, and the csrc of the kernels.",
    "kernel_sdist": "What the prebuilt kernels were built from; it is proven that its "
    "csrc is the one above.",
    "kernel_wheels": "The prebuilt kernels, fetched only when a wheel needs them.",
}


@dataclass(frozen=True)
class Artifact:
    project: str
    """Normalised project name, as the index spells it: `vllm-ascend`."""
    version: str
    filename: str
    sha256: str
    size: int
    """Bytes."""


@dataclass(frozen=True)
class Lock:
    vllm: Artifact
    vllm_ascend: Artifact
    kernel_sdist: Artifact | None = None
    kernel_wheels: tuple[Artifact, ...] = ()

    @property
    def packages(self) -> Mapping[str, Artifact]:
        return {"vllm": self.vllm, "vllm_ascend": self.vllm_ascend}

    def kernel_wheel(self, python: str, arch: str) -> Artifact:
        names = [wheel.filename.split("-", 2)[2] for wheel in self.kernel_wheels]
        for wheel, name in zip(self.kernel_wheels, names, strict=True):
            if name.startswith(f"{python}-") and name.endswith(f"_{arch}.whl"):
                return wheel
        have = ", ".join(name.removesuffix(".whl") for name in names) or "none"
        raise ToolError(
            f"upstream.toml: expected a kernel wheel for {python} on {arch}, found "
            f"{have}; choose another PYTHON and ARCH or lock a release that has one"
        )


def load_lock(path: Path) -> Lock:
    if not path.exists():
        raise ToolError(
            f"{path}: expected the lock here, found no file; restore it from git"
        )
    return parse_lock(read_text(path), str(path))


def parse_lock(text: str, name: str = "upstream.toml") -> Lock:
    try:
        data: Mapping[str, Any] = tomlkit.parse(text).unwrap()
    except TOMLKitError as error:
        raise ToolError(
            f"{name}: expected TOML, found {error}; restore the file from git"
        ) from error
    names = ["vllm", "vllm_ascend"]
    if "kernel_sdist" in data:
        names.append("kernel_sdist")
    wheels = data.get("kernel_wheels", [])
    wheels = enumerate(wheels if isinstance(wheels, list) else [wheels])
    return Lock(
        **{key: _artifact(data.get(key), f"{name}: {key}") for key in names},
        kernel_wheels=tuple(
            _artifact(entry, f"{name}: kernel_wheels[{i}]") for i, entry in wheels
        ),
    )


def dump_lock(lock: Lock) -> str:
    """The canonical text: the same lock always gives the same bytes."""
    tables = ["".join(f"# {line}\n" for line in HEADER.splitlines())]
    for name in ("vllm", "vllm_ascend", "kernel_sdist"):
        if (artifact := getattr(lock, name)) is not None:
            tables.append(f"[{name}]\n# {NOTES[name]}\n{_entries(artifact)}")
    note = f"# {NOTES['kernel_wheels']}\n"
    for artifact in sorted(lock.kernel_wheels, key=lambda wheel: wheel.filename):
        tables.append(f"[[kernel_wheels]]\n{note}{_entries(artifact)}")
        note = ""
    return "\n".join(tables)


def _entries(artifact: Artifact) -> str:
    # Of names, versions, hashes and sizes JSON and TOML are the same.
    entries = asdict(artifact).items()
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in entries)


def _artifact(entry: Any, where: str) -> Artifact:
    try:
        file = Artifact(**entry)
        release = (file.project, Version(file.version))
        is_right = release_of(file.filename) == release and isinstance(file.size, int)
        is_right &= file.size > 0 and bool(re.fullmatch(r"[0-9a-f]{64}", file.sha256))
    except (TypeError, InvalidVersion):
        is_right = False
    if not is_right:
        names = ", ".join(field.name for field in fields(Artifact))
        raise ToolError(
            f"{where}: expected {names} of one file, found {entry!r}; restore the lock "
            "from git"
        )
    return file


def release_of(filename: str) -> tuple[str, Version] | None:
    """Project and version that a file name of an index says; None for no such file.

    A name with a folder in it is no file name.
    """
    if "/" in filename or "\\" in filename:
        return None
    try:
        if filename.endswith(".whl"):
            wheel_name, version, _, _ = parse_wheel_filename(filename)
            return canonicalize_name(wheel_name), version
        sdist_name, version = parse_sdist_filename(filename)
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        return None
    return canonicalize_name(sdist_name), version
