"""The toolchain that compiles the kernels: Python, and the versions of all else.

Only Python and machine are checked, which are in the name of the wheel; CANN's
compilers and CMake report themselves what they lack.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from balance_tools.distribution import Choice
from balance_tools.errors import ToolError
from balance_tools.run import capture

PROBE = """
import json, sys, sysconfig
from importlib.metadata import distribution
facts = {"PYTHON_EXECUTABLE": sys.executable, "tag": "cp%d%d" % sys.version_info[:2],
         "PYTHON_INCLUDE_PATH": sysconfig.get_paths()["include"]}
try:
    import pybind11, torch
    installed = {name: distribution(name) for name in ("torch", "torch-npu")}
    facts["versions"] = {name: d.version for name, d in installed.items()}
    facts["PYBIND11_CMAKE_DIR"] = pybind11.get_cmake_dir()
    facts["TORCH_NPU_PATH"] = str(installed["torch-npu"].locate_file("torch_npu"))
except Exception as error:
    facts["failed"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(facts))
"""


@dataclass(frozen=True)
class Toolchain:
    definitions: Mapping[str, str]
    """Variables of CMakeLists.txt: the `python3` on PATH, and folders."""
    description: str
    """The versions, for a person and for the record in the wheel."""


def find_toolchain(choice: Choice) -> Toolchain:
    python = ask_python3()
    if "failed" in python:
        raise _refusal("python3", "torch, torch-npu and pybind11", python["failed"])
    if choice.arch != platform.machine():
        raise _refusal("ARCH", f"this machine's {platform.machine()}", choice.arch)
    if choice.python != python["tag"]:
        raise _refusal("PYTHON", f"{python['tag']} of python3", choice.python)
    home = Path(os.environ.get("ASCEND_HOME_PATH", "/unset"))
    info = home / f"{choice.arch}-linux" / "ascend_toolkit_install.info"
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    cann = re.search(r"^\s*version\s*=\s*(.*?)\s*$", text, re.M)
    if cann is None:
        raise _refusal("ASCEND_HOME_PATH", f"CANN, with {info}", "none")
    versions = {"CANN": cann[1], **python["versions"]}
    compiler = os.environ.get("CXX_COMPILER", "c++")
    versions["cmake"] = _query("cmake", "--version").rpartition(" ")[2]
    versions[Path(compiler).name] = _query(compiler, "-dumpfullversion", "-dumpversion")
    definitions = {name: text for name, text in python.items() if name.isupper()}
    return Toolchain(
        definitions | {"ASCEND_HOME_PATH": str(home)},
        ", ".join(f"{name} {version}" for name, version in versions.items()),
    )


def _refusal(subject: str, expected: str, found: str) -> ToolError:
    return ToolError(
        f"{subject}: expected {expected} to compile the kernels, found {found}; "
        "docs/install.md tells what is needed"
    )


def ask_python3() -> dict[str, Any]:
    """The facts about the `python3` on PATH, which upstream's build calls.

    The tools' own environment is not it, although make starts them from there.
    """
    try:
        facts: dict[str, Any] = json.loads(_query("python3", "-c", PROBE))
    except ValueError:
        raise ToolError(
            "python3: expected the Python that the kernels are for on PATH, found none "
            "that runs; activate its environment"
        ) from None
    return facts


def _query(*command: str) -> str:
    """The first line that a program writes; empty if it cannot be run."""
    try:
        return capture(command).text.partition("\n")[0].strip()
    except ToolError:
        return ""
