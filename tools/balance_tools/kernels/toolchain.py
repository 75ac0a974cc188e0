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
from packaging.version import Version

from balance_tools.distribution import Choice
from balance_tools.errors import ToolError
from balance_tools.kernels.socs import device_of
from balance_tools.run import capture

DISTRIBUTIONS = (
    *("attrs", "decorator", "numpy", "psutil", "pybind11", "pyyaml", "scipy"),
    *("torch", "torch-npu"),
)
"""What the plugin and CANN's own compilers import; which versions, the plugin says."""
PROGRAMS = ("bash", "bisheng", "cmake", "git", "make")
"""bisheng is CANN's compiler, on PATH once its set_env.sh is sourced."""
ASCENDC = (
    "tools/tikcpp/ascendc_kernel_cmake",
    "compiler/tikcpp/ascendc_kernel_cmake",
    "ascendc_devkit/tikcpp/samples/cmake",
)
"""Folders of CANN, one of which has the CMake code for kernels."""
PROBE = """
import importlib.metadata as metadata, json, sys, sysconfig
found = {one.metadata["Name"].lower().replace("_", "-"): one.version
         for one in metadata.distributions()}
facts = {"executable": sys.executable, "tag": "cp%d%d" % sys.version_info[:2],
         "include": sysconfig.get_paths()["include"], "versions": found, "failed": {}}
for name, ask in (("pybind11", lambda module: module.get_cmake_dir()),
                  ("torch", lambda module: module.__version__)):
    try:
        facts[name] = ask(__import__(name))
    except Exception as error:
        facts["failed"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
if "torch-npu" in found:
    npu = metadata.distribution("torch-npu").locate_file("torch_npu")
    facts["torch_npu"] = str(npu)
print(json.dumps(facts))
"""


@dataclass(frozen=True)
class Toolchain:
    """What the kernels are compiled with, complete."""

    definitions: Mapping[str, str]
    """What CMakeLists.txt wants to know of it: the `python3` on PATH and folders."""
    description: str
    """The versions, for a person and for the record in the wheel."""


def python_tag() -> str:
    """The tag of the `python3` on PATH, which upstream's build calls throughout.

    Raises:
        ToolError: there is none that runs.
    """
    return str(_ask_python()["tag"])


def find_toolchain(pristine: Path, choice: Choice) -> Toolchain:
    """Everything that compiling the kernels for `choice` needs, from the environment.

    Args:
        pristine: The plugin's unpacked sdist, which says what it needs.
        choice: The wheel.

    Raises:
        ToolError: names all that is missing.
    """
    python, home = _ask_python(), Path(os.environ.get("ASCEND_HOME_PATH", "/unset"))
    cann = _value(home / f"{choice.arch}-linux/ascend_toolkit_install.info", "version")
    cmake = re.search(r"\d+\.\d+\.\d+", _says("cmake", "--version"))
    missing = [
        *_of_choice(pristine, choice, python),
        *_of_cann(home, cann, _value(pristine / "csrc/version.info", "Version")),
        *_of_path(),
        *_of_python(pristine, python, cmake[0] if cmake else None),
    ]
    if missing:
        listed = "; ".join(f"({i}) {line}" for i, line in enumerate(missing, 1))
        raise ToolError(
            "KERNELS=source: expected everything that compiling the kernels needs, "
            f"found {len(missing)} things missing: {listed}; docs/images.md tells how "
            "to get them"
        )
    compiler = os.environ.get("CXX_COMPILER", "c++")
    versions = {
        "CANN": cann or "of unknown version",
        **{name: python["versions"][name] for name in ("torch", "torch-npu")},
        "cmake": cmake[0] if cmake else "",
        Path(compiler).name: _says(compiler, "-dumpfullversion", "-dumpversion"),
    }
    definitions = {
        "ASCEND_HOME_PATH": str(home),
        "PYTHON_EXECUTABLE": python["executable"],
        "PYTHON_INCLUDE_PATH": python["include"],
        "PYBIND11_CMAKE_DIR": python["pybind11"],
        "TORCH_NPU_PATH": python["torch_npu"],
    }
    description = ", ".join(f"{name} {text}" for name, text in versions.items())
    return Toolchain(definitions, description)


def _of_choice(
    pristine: Path, choice: Choice, python: Mapping[str, Any]
) -> Iterator[str]:
    try:
        device_of(choice.soc, pristine)
    except ToolError as error:
        yield str(error)
    if choice.arch != platform.machine():
        yield f"ARCH: expected this machine's {platform.machine()}, found {choice.arch}"
    if choice.python != python["tag"]:
        yield f"PYTHON: expected {python['tag']} of python3, found {choice.python}"


def _of_cann(home: Path, found: str | None, wanted: str | None) -> Iterator[str]:
    if not any((home / folder / "ascendc.cmake").is_file() for folder in ASCENDC):
        yield (
            f"ASCEND_HOME_PATH: expected the CANN toolkit with {ASCENDC[0]}, found "
            f"none in {home}; install it and source its set_env.sh"
        )
    if wanted and found and Version(found).release != Version(wanted).release:
        yield f"{home}: expected CANN {wanted}, found {found}"
    atb = Path(os.environ.get("ATB_HOME_PATH", "/unset"))
    if not (atb / "lib" / "libatb.so").is_file():
        yield (
            f"ATB_HOME_PATH: expected CANN's nnal with lib/libatb.so, found none in "
            f"{atb}; install it and source nnal/atb/set_env.sh"
        )


def _of_path() -> Iterator[str]:
    compilers = (("C_COMPILER", "cc"), ("CXX_COMPILER", "c++"))
    for name in (*PROGRAMS, *(os.environ.get(*pair) or pair[1] for pair in compilers)):
        if shutil.which(name) is None:
            yield f"{name}: expected this program on PATH, found none"


def _of_python(
    pristine: Path, python: Mapping[str, Any], cmake: str | None
) -> Iterator[str]:
    """Compare versions with what the plugin declares that its build requires."""
    data = tomlkit.parse((pristine / "pyproject.toml").read_text()).unwrap()
    lines = [Requirement(line) for line in data["build-system"]["requires"]]
    wanted = {str(canonicalize_name(line.name)): line.specifier for line in lines}
    have = {**python["versions"], "cmake": cmake}
    for name in ("cmake", *DISTRIBUTIONS):
        version = have.get(name)
        if name not in wanted:
            yield f"{pristine}/pyproject.toml: expected {name} in its build, found none"
        elif version is None:
            yield f"{name}{wanted[name]}: expected, found none"
        elif not wanted[name].contains(version, prereleases=True):
            yield f"{name}{wanted[name]}: expected, found {version}"
        elif name in python["failed"]:
            yield f"{name}: expected to import, found {python['failed'][name]}"


def _ask_python() -> dict[str, Any]:
    """What the `python3` on PATH says of itself.

    The tools' own environment is not it, although make starts them from there.
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
