"""A stand-in for CANN, torch-npu and cmake, that records what it is asked to do."""

import json
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import cmake

VERSIONS = {"torch": "2.10.0", "torch-npu": "2.10.0.post4"}
COMPILERS = ("cc", "c++", "gcc", "g++")
PYBIND11 = """
from pathlib import Path
def get_cmake_dir():
    return str(Path(__file__).parent / "share" / "cmake")
"""
MODULES = {
    "torch": "__version__ = '2.10.0'\n",
    "pybind11": PYBIND11,
    "pybind11.__main__": "from pybind11 import get_cmake_dir\nprint(get_cmake_dir())\n",
    # Upstream's setup.py asks it for the version of its git checkout.
    "setuptools_scm": "def get_version(**options):\n    raise LookupError\n",
}


@dataclass(frozen=True)
class StandIn:
    folder: Path

    @property
    def record(self):
        """What cmake was asked, a line of JSON each."""
        return self.folder / "record.jsonl"

    def environment(self):
        """The environment in which they are found, as after sourcing set_env.sh."""
        path = [self.folder / "bin", Path(sys.executable).parent, "/usr/bin", "/bin"]
        return {
            "ASCEND_HOME_PATH": str(self.folder / "cann"),
            "ATB_HOME_PATH": str(self.folder / "atb"),
            "HOME": str(self.folder / "home"),
            "PATH": os.pathsep.join(map(str, path)),
            "PYTHONPATH": str(self.folder / "site"),
            "STAND_IN_CMAKE": str(Path(cmake.CMAKE_BIN_DIR) / "cmake"),
            "STAND_IN_RECORD": str(self.record),
        }

    def calls(self):
        """The recorded calls, in order; the record is emptied."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        self.record.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]


def make_stand_in(folder):
    for name in ("bin", "home", "site"):
        (folder / name).mkdir(parents=True)
    script = Path(__file__).with_name("stand_in_cmake.py").read_text()
    _program(folder / "bin" / "cmake", f"#!{sys.executable}\n{script}")
    for name in ("bisheng", *COMPILERS):  # nothing is compiled
        _program(folder / "bin" / name, "#!/bin/sh\necho 14\n")
    _file(folder / "cann/tools/tikcpp/ascendc_kernel_cmake/ascendc.cmake")
    _file(folder / "cann/bin/setenv.bash")
    info = f"{platform.machine()}-linux/ascend_toolkit_install.info"
    _file(folder / "cann" / info, "package_name=toolkit\nversion=9.1.0\n")
    _file(folder / "atb/lib/libatb.so")
    for name, version in VERSIONS.items():
        info = f"{name.replace('-', '_')}-{version}.dist-info/METADATA"
        _file(
            folder / "site" / info,
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        )
    for name, text in MODULES.items():
        package, _, module = name.partition(".")
        _file(folder / "site" / package / f"{module or '__init__'}.py", text)
    return StandIn(folder)


def _file(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _program(path, text):
    path.write_text(text)
    path.chmod(0o755)
