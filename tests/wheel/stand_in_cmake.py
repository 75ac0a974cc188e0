"""Stands in for cmake in upstream's build: records the call and makes dummy outputs.

Calls of our own superbuild go to the real cmake.
"""

import json
import os
import platform
import struct
import sys
from pathlib import Path

CONFIGURED = Path("stand-in.json")
MACHINES = {"x86_64": 62, "aarch64": 183}
INSTALLER = """#!/bin/sh
for argument; do to=${argument#--install-path=}; done
mkdir -p "$to/vendors/custom_transformer/op_api/lib"
cp "$(dirname "$0")/libcust_opapi.so" "$to/vendors/custom_transformer/op_api/lib/"
"""


def elf() -> bytes:
    """The header of a shared object for this machine, and nothing more."""
    machine = MACHINES[platform.machine()]
    return b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 3, machine)


def record(arguments: list[str]) -> None:
    entry = {"argv": arguments, "cwd": str(Path.cwd()), "env": dict(os.environ)}
    with Path(os.environ["STAND_IN_RECORD"]).open("a") as file:
        file.write(json.dumps(entry) + "\n")


def configure(arguments: list[str]) -> None:
    pairs = [a[2:].partition("=") for a in arguments if a.startswith("-D")]
    CONFIGURED.write_text(json.dumps({name: value for name, _, value in pairs}))


def build(definitions: dict[str, str]) -> None:
    if "SOC_VERSION" not in definitions:  # the operators
        Path("libcust_opapi.so").write_bytes(elf())
        installer = Path("cann-ops-transformer-stand-in.run")
        installer.write_text(INSTALLER)
        installer.chmod(0o755)
        return
    tag = f"cpython-{sys.version_info.major}{sys.version_info.minor}"
    Path(f"vllm_ascend_C.{tag}-{platform.machine()}-linux-gnu.so").write_bytes(elf())
    if not definitions["SOC_VERSION"].startswith(("ascend310p", "ascend950")):
        Path("libvllm_ascend_kernels.so").write_bytes(elf())


def install(definitions: dict[str, str]) -> None:
    prefix = Path(definitions["CMAKE_INSTALL_PREFIX"])
    prefix.mkdir(parents=True, exist_ok=True)
    for library in Path().glob("*.so"):
        (prefix / library.name).write_bytes(library.read_bytes())


def main() -> int:
    arguments = sys.argv[1:]
    builds = arguments[:1] == ["--build"]
    superbuild = builds and Path(arguments[1], "CMakeCache.txt").is_file()
    if arguments[0] in {"--version", "-S"} or superbuild:
        real = os.environ["STAND_IN_CMAKE"]
        os.execv(real, [real, *arguments])
    record(arguments)
    if os.environ.get("STAND_IN_FAILS") in arguments:
        print("stand-in: told to fail")
        return 1
    if builds:
        build(json.loads(CONFIGURED.read_text()))
    elif arguments[:1] == ["--install"]:
        install(json.loads(CONFIGURED.read_text()))
    else:
        configure(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
