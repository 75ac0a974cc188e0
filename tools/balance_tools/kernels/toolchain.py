"""What compiling the kernels needs: all that is missing is named in one error.

A build of the kernels takes an hour, and upstream's build finds out one by one, some of
it at the end.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from balance_tools.distribution import Choice
from balance_tools.errors import ToolError
from balance_tools.run import capture

DISTRIBUTIONS = (
    *("attrs", "decorator", "numpy", "psutil", "pybind11", "pyyaml", "scipy"),
    *("torch", "torch-npu"),
)
"""What the plugin and CANN's own compilers import; which versions, the plugin says."""
PROGRAMS = ("bash", "bisheng", "cmake", "git", "make")
"""bisheng is CANN's compiler, on PATH once its set_env.sh is sourced."""
FILES = {
    "ASCEND_HOME_PATH": "*/tikcpp/**/ascendc.cmake",
    "ATB_HOME_PATH": "lib/libatb.so",
}
"""By the variable that CANN's set_env.sh and that of its nnal set."""
PROBE = """
import importlib.metadata as metadata, json, sys, sysconfig
found = {one.metadata["Name"].lower().replace("_", "-"): one
         for one in metadata.distributions()}
facts = {"PYTHON_EXECUTABLE": sys.executable, "tag": "cp%d%d" % sys.version_info[:2],
         "PYTHON_INCLUDE_PATH": sysconfig.get_paths()["include"],
         "versions": {name: one.version for name, one in found.items()}}
try:
    import pybind11, torch
    facts["PYBIND11_CMAKE_DIR"] = pybind11.get_cmake_dir()
    facts["TORCH_NPU_PATH"] = str(found["torch-npu"].locate_file("torch_npu"))
except Exception as error:
    facts["failed"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(facts))
"""


@dataclass(frozen=True)
class Toolchain:
    """What the kernels are compiled with, complete."""

    definitions: Mapping[str, str]
    """What CMakeLists.txt wants to know of it: the `python3` on PATH and folders."""
    description: str
    """The versions, for a person and for the record in the wheel."""


def find_toolchain(pristine: Path, choice: Choice) -> Toolchain:
    """Everything that compiling the kernels for `choice` needs, from the environment.

    `pristine` is the plugin's unpacked sdist, which says what it needs.

    Raises:
        ToolError: names all that is missing.
    """
    python = ask_python3()
    home = Path(os.environ.get("ASCEND_HOME_PATH", "/unset"))
    info = home / f"{choice.arch}-linux" / "ascend_toolkit_install.info"
    cmake = _says("cmake", "--version").rpartition(" ")[2]
    versions = {**python["versions"], "CANN": _value(info, "version"), "cmake": cmake}
    missing = [*_of_machine(choice, python["tag"])]
    # The versions that the plugin declares that its build requires.
    cann = f"CANN=={_value(pristine / 'csrc/version.info', 'Version')}.*"
    data = tomlkit.parse((pristine / "pyproject.toml").read_text("utf-8")).unwrap()
    for wanted in map(Requirement, [cann, *data["build-system"]["requires"]]):
        name = wanted.name if wanted.name == "CANN" else canonicalize_name(wanted.name)
        if name in {"CANN", "cmake", *DISTRIBUTIONS}:
            found = versions[name] = versions.get(name) or "none"
            fits = wanted.specifier.contains(found, prereleases=True)
            if found == "none" or not fits:
                missing.append(f"{name}{wanted.specifier}: expected, found {found}")
    if "failed" in python and not missing:
        missing.append(f"torch, pybind11: expected to import, found {python['failed']}")
    if missing:
        listed = "; ".join(f"({i}) {line}" for i, line in enumerate(missing, 1))
        raise ToolError(
            "KERNELS=source: expected everything that compiling the kernels needs, "
            f"found {len(missing)} things missing: {listed}; docs/install.md tells how "
            "to get them"
        )
    compiler = os.environ.get("CXX_COMPILER", "c++")
    named = {name: versions[name] for name in ("CANN", "torch", "torch-npu", "cmake")}
    named[Path(compiler).name] = _says(compiler, "-dumpfullversion", "-dumpversion")
    definitions = {name: text for name, text in python.items() if name.isupper()}
    return Toolchain(
        definitions | {"ASCEND_HOME_PATH": str(home)},
        ", ".join(f"{name} {version}" for name, version in named.items()),
    )


def _of_machine(choice: Choice, python: str) -> Iterator[str]:
    if choice.arch != platform.machine():
        yield f"ARCH: expected this machine's {platform.machine()}, found {choice.arch}"
    if choice.python != python:
        yield f"PYTHON: expected {python} of python3, found {choice.python}"
    for variable, file in FILES.items():
        folder = Path(os.environ.get(variable, "/unset"))
        if not any(folder.glob(file)):
            yield (
                f"{variable}: expected CANN or its nnal with {file}, found none in "
                f"{folder}; install it and source its set_env.sh"
            )
    compilers = (("C_COMPILER", "cc"), ("CXX_COMPILER", "c++"))
    for name in (*PROGRAMS, *(os.environ.get(*pair) or pair[1] for pair in compilers)):
        if shutil.which(name) is None:
            yield f"{name}: expected this program on PATH, found none"


def ask_python3() -> dict[str, Any]:
    """What the `python3` on PATH says of itself, which upstream's build calls.

    The tools' own environment is not it, although make starts them from there.

    Raises:
        ToolError: there is none that runs.
    """
    try:
        facts: dict[str, Any] = json.loads(_says("python3", "-c", PROBE))
    except ValueError:
        raise ToolError(
            "python3: expected the Python that the kernels are for on PATH, found none "
            "that runs; activate its environment"
        ) from None
    return facts


def _value(path: Path, key: str) -> str | None:
    """The value of `key=value` in a file of such lines; None if it is not there."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.search(rf"^\s*{key}\s*=\s*(.*?)\s*$", text, re.MULTILINE)
    return found[1] if found else None


def _says(*command: str) -> str:
    """The first line that a program writes; empty if it cannot be run."""
    try:
        return capture(command).text.partition("\n")[0].strip()
    except ToolError:
        return ""
