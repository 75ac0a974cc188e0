"""What compiling the kernels needs: all of it is looked for before anything starts.

A build of the kernels takes an hour, and upstream's build finds out one by one, some of
it at the end. Here everything that is missing is named together, in one error.
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
from packaging.version import InvalidVersion, Version

from balance_tools.distribution import Choice
from balance_tools.errors import ToolError
from balance_tools.kernels.socs import device_of
from balance_tools.run import capture, output_of

DISTRIBUTIONS = (
    "attrs",
    "decorator",
    "numpy",
    "psutil",
    "pybind11",
    "pyyaml",
    "scipy",
    "torch",
    "torch-npu",
)
"""What the plugin and CANN's own compilers import; which versions, the plugin says."""
PROGRAMS = {
    "bash": "install it",
    "bisheng": "it is CANN's compiler and on PATH once its set_env.sh is sourced",
    "cmake": "install it, for example with pip",
    "git": "install it",
    "make": "install it",
}
SET_ENV = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
SET_ENV_ATB = "source /usr/local/Ascend/nnal/atb/set_env.sh"
ASCENDC = ("tools/tikcpp", "compiler/tikcpp", "ascendc_devkit/tikcpp/samples")
"""Folders of CANN, one of which has the CMake code for kernels."""
NO_PYTHON = (
    "python3: expected the Python that the kernels are for on PATH, found none that "
    "runs; activate its environment"
)
PROBE = """
import importlib.metadata as metadata, json, sys, sysconfig
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
def attempt(function):
    try:
        return function(), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
names = sys.argv[1:]
print(json.dumps({
    "executable": sys.executable,
    "tag": "cp%d%d" % sys.version_info[:2],
    "include": sysconfig.get_paths()["include"],
    "versions": {name: version(name) for name in names},
    "pybind11": attempt(lambda: __import__("pybind11").get_cmake_dir()),
    "torch_npu": attempt(
        lambda: str(metadata.distribution("torch-npu").locate_file("torch_npu"))),
    "torch": attempt(lambda: __import__("torch").__version__),
}))
"""


@dataclass(frozen=True)
class Toolchain:
    """What the kernels are compiled with, complete."""

    definitions: Mapping[str, str]
    """What CMakeLists.txt wants to know of it: the `python3` on PATH and folders."""
    description: str
    """The versions, for a person and for the record in the wheel."""


def python_tag() -> str:
    """The tag of the `python3` on PATH.

    Raises:
        ToolError: there is none that runs.
    """
    found = _ask_python()
    if found is None:
        raise ToolError(NO_PYTHON)
    return str(found["tag"])


def find_toolchain(pristine: Path, choice: Choice) -> Toolchain:
    """Everything that compiling the kernels for `choice` needs, from the environment.

    Args:
        pristine: The plugin's unpacked sdist, which says what it needs.
        choice: The wheel.

    Raises:
        ToolError: names all that is missing.
    """
    wanted = _build_requirements(pristine)
    python = _ask_python()
    home = Path(os.environ.get("ASCEND_HOME_PATH", ""))
    compiler = os.environ.get("CXX_COMPILER", "c++")
    missing = [
        *_choice_problems(pristine, choice, python),
        *_cann_problems(pristine, home, choice.arch),
        *_atb_problems(os.environ.get("ATB_HOME_PATH", "")),
        *_program_problems(wanted["cmake"]),
        *_python_problems(python, wanted),
    ]
    if missing or python is None:
        listed = "; ".join(f"({i}) {line}" for i, line in enumerate(missing, 1))
        raise ToolError(
            "KERNELS=source: expected everything that compiling the kernels needs, "
            f"found {len(missing)} things missing: {listed}; docs/images.md tells how "
            "to get them"
        )
    versions = {
        "CANN": _cann_version(home, choice.arch) or "of unknown version",
        **{name: python["versions"][name] for name in ("torch", "torch-npu")},
        "cmake": str(_cmake_version()),
        Path(compiler).name: _first_line(compiler, "-dumpfullversion", "-dumpversion"),
    }
    definitions = {
        "ASCEND_HOME_PATH": str(home),
        "PYTHON_EXECUTABLE": python["executable"],
        "PYTHON_INCLUDE_PATH": python["include"],
        "PYBIND11_CMAKE_DIR": python["pybind11"][0],
        "TORCH_NPU_PATH": python["torch_npu"][0],
    }
    description = ", ".join(f"{name} {text}" for name, text in versions.items())
    return Toolchain(definitions, description)


def _build_requirements(pristine: Path) -> dict[str, Requirement]:
    """What the plugin declares that its build requires, by normalised name."""
    path = pristine / "pyproject.toml"
    data = tomlkit.parse(path.read_text(encoding="utf-8")).unwrap()
    lines = [Requirement(line) for line in data["build-system"]["requires"]]
    found = {str(canonicalize_name(line.name)): line for line in lines}
    if gone := sorted({"cmake", *DISTRIBUTIONS} - set(found)):
        raise ToolError(
            f"{path}: expected {', '.join(gone)} among the requirements of the build, "
            "found none; see what upstream's build needs now and fix "
            "tools/balance_tools/kernels/toolchain.py"
        )
    return found


def _choice_problems(
    pristine: Path, choice: Choice, python: Mapping[str, Any] | None
) -> Iterator[str]:
    try:
        device_of(choice.soc, pristine)
    except ToolError as error:
        yield str(error)
    if choice.arch != platform.machine():
        yield (
            f"ARCH: expected this machine's {platform.machine()}, found {choice.arch}; "
            "compile on such a machine"
        )
    if python and choice.python != python["tag"]:
        yield (
            f"PYTHON: expected {python['tag']}, which python3 on PATH is, found "
            f"{choice.python}; activate the environment of the other Python"
        )


def _cann_problems(pristine: Path, home: Path, arch: str) -> Iterator[str]:
    if home == Path():
        yield f"ASCEND_HOME_PATH: expected the CANN toolkit, found it unset; {SET_ENV}"
        return
    folders = [home / folder for folder in ASCENDC]
    cmake = [folder / "ascendc_kernel_cmake" for folder in folders[:2]]
    cmake.append(folders[2] / "cmake")
    if not any((folder / "ascendc.cmake").is_file() for folder in cmake):
        yield (
            f"{home}: expected the CANN toolkit with its CMake code for kernels "
            f"(tools/tikcpp/ascendc_kernel_cmake), found none; install the toolkit and "
            f"{SET_ENV}"
        )
    wanted = _key(pristine / "csrc" / "version.info", "Version")
    found = _cann_version(home, arch)
    if wanted and found and not _same_release(found, wanted):
        yield f"{home}: expected CANN {wanted}, found {found}; install CANN {wanted}"


def _atb_problems(home: str) -> Iterator[str]:
    if not home or not (Path(home) / "lib" / "libatb.so").is_file():
        found = f"none in {home}" if home else "the variable unset"
        yield (
            f"ATB_HOME_PATH: expected CANN's nnal with lib/libatb.so, found {found}; "
            f"install nnal and {SET_ENV_ATB}"
        )


def _program_problems(cmake: Requirement) -> Iterator[str]:
    for name, advice in PROGRAMS.items():
        if shutil.which(name) is None:
            yield f"{name}: expected this program on PATH, found none; {advice}"
    found = _cmake_version()
    if found is not None and not cmake.specifier.contains(found):
        yield (
            f"cmake: expected {cmake.specifier}, found {found}; install another, for "
            "example with pip"
        )
    for variable, default in (("C_COMPILER", "cc"), ("CXX_COMPILER", "c++")):
        compiler = os.environ.get(variable, default)
        if shutil.which(compiler) is None:
            yield (
                f"{compiler}: expected a compiler, found none; install gcc and g++, or "
                f"name one in {variable}"
            )


def _python_problems(
    python: Mapping[str, Any] | None, wanted: Mapping[str, Requirement]
) -> Iterator[str]:
    if python is None:
        yield NO_PYTHON
        return
    where = python["executable"]
    lacking = []
    for name, version in python["versions"].items():
        specifier = wanted[name].specifier
        if version is None:
            lacking.append(f"{name}{specifier} (found none)")
        elif not specifier.contains(version, prereleases=True):
            lacking.append(f"{name}{specifier} (found {version})")
    if lacking:
        yield (
            f"{where}: expected {', '.join(lacking)}; install with its pip, torch-npu "
            "may need the vendor's index"
        )
    for name in ("torch", "pybind11"):
        value, error = python[name]
        if python["versions"][name] and value is None:
            yield (
                f"{where}: expected `import {name}` to work, found {error}; fix that "
                "environment"
            )


def _ask_python() -> dict[str, Any] | None:
    """What the `python3` on PATH says of itself; None if there is none that runs.

    Upstream's build calls this name throughout, so no other interpreter will do. The
    tools' own environment is not it, although make starts them from there.
    """
    command = ["python3", "-c", PROBE, *DISTRIBUTIONS]
    try:
        answer = output_of(command)
    except ToolError:
        return None
    facts: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return facts


def _cmake_version() -> Version | None:
    found = re.search(r"\d+\.\d+\.\d+", _first_line("cmake", "--version"))
    return Version(found[0]) if found else None


def _cann_version(home: Path, arch: str) -> str | None:
    """The release of the toolkit, `9.1.0`; None where it does not say."""
    return _key(home / f"{arch}-linux" / "ascend_toolkit_install.info", "version")


def _same_release(found: str, wanted: str) -> bool:
    try:
        return Version(found).base_version == Version(wanted).base_version
    except InvalidVersion:
        return found == wanted


def _key(path: Path, key: str) -> str | None:
    """The value of `key=value` in a file of such lines; None if it is not there."""
    if not path.is_file():
        return None
    for line in path.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == key:
            return value.strip()
    return None


def _first_line(*command: str) -> str:
    """The first line that a program writes; empty if it cannot be run."""
    try:
        return capture(command).text.partition("\n")[0].strip()
    except ToolError:
        return ""
