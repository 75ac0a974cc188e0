"""Which machine a binary is for, read from the header of its ELF file.

Two kinds of ELF file are in an Ascend wheel. Host objects are loaded by the Python
process and must be of the machine the wheel is tagged for. Device objects are handed to
the NPU and are the same in the x86_64 and the aarch64 wheel: kernels for the AI core
(a machine number of Huawei's own, with which the host's loader can do nothing) and the
library of the AI CPU, the Arm cores inside the NPU, which is an aarch64 object in every
wheel.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError

MAGIC = b"\x7fELF"
HEADER_BYTES = 20
CLASS_64, LITTLE_ENDIAN = 2, 1
MACHINES = {"x86_64": 62, "aarch64": 183}
"""e_machine of the hosts: EM_X86_64 and EM_AARCH64."""
AI_CORE = 0x1029
"""e_machine of the kernels that the CANN compiler makes for the AI core."""
AI_CPU_FOLDER = "aicpu_kernel"
"""The folder that CANN loads libraries for the device's Arm cores from."""


@dataclass(frozen=True)
class ElfFile:
    """One ELF file of a wheel."""

    path: Path
    """Relative to the root of the wheel."""
    machine: int
    """e_machine."""

    @property
    def is_device(self) -> bool:
        """Whether it runs on the NPU and not in the Python process."""
        return self.machine == AI_CORE or (
            AI_CPU_FOLDER in self.path.parts and self.machine == MACHINES["aarch64"]
        )


def read_machine(path: Path) -> int | None:
    """The e_machine of an ELF file; None where `path` is no ELF file.

    Raises:
        ToolError: it is an ELF file that is cut short, 32-bit or big-endian.
    """
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if not header.startswith(MAGIC):
        return None
    if len(header) < HEADER_BYTES or header[4:6] != bytes((CLASS_64, LITTLE_ENDIAN)):
        raise ToolError(
            f"{path}: expected a 64-bit little-endian ELF file, found another or one "
            "that is cut short; fetch the kernels again"
        )
    return int(struct.unpack_from("<H", header, 18)[0])


def find_elf_files(root: Path, paths: Iterable[Path]) -> list[ElfFile]:
    """The ELF files among `paths`, which are relative to `root`."""
    found = ((path, read_machine(root / path)) for path in paths)
    return [ElfFile(path, machine) for path, machine in found if machine is not None]


def check_elf_files(files: Iterable[ElfFile], python: str, arch: str) -> None:
    """Refuse a host object of another machine or Python than the wheel is tagged for.

    `python` is a tag such as `cp311`, `arch` one of MACHINES. A wheel without any host
    object has no kernels and is refused too.
    """
    host = [file for file in files if not file.is_device]
    for file in host:
        if file.machine != MACHINES[arch]:
            names = {number: name for name, number in MACHINES.items()}
            raise ToolError(
                f"{file.path}: expected a binary for {arch}, found one for "
                f"{names.get(file.machine, f'machine {file.machine}')}; use kernels "
                "that were built for the architecture of the wheel"
            )
        _, tagged, rest = file.path.name.partition(".cpython-")
        version = python.removeprefix("cp")
        if tagged and not rest.startswith(f"{version}-"):
            raise ToolError(
                f"{file.path}: expected an extension for cpython-{version}, found one "
                "for another Python; use kernels that were built for the Python of the "
                "wheel"
            )
    if not host:
        raise ToolError(
            "vllm_ascend: expected compiled kernels in the wheel, found none; fetch "
            "the kernels again"
        )


def check_pure(files: Iterable[ElfFile]) -> None:
    """Refuse any binary in a wheel that is tagged for every machine."""
    for file in files:
        raise ToolError(
            f"{file.path}: expected only Python and data in a wheel for any machine, "
            "found a binary; run `make vendor` to restore the tree"
        )
