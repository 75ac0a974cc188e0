"""A binary is accepted for the machine of the wheel, and for nothing else."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from balance_tools.errors import ToolError
from balance_tools.wheel.elf import (
    AI_CORE,
    MACHINES,
    ElfFile,
    check_elf_files,
    check_pure,
    find_elf_files,
    read_machine,
)

X86, ARM = MACHINES["x86_64"], MACHINES["aarch64"]


def write_elf(
    path: Path, machine: int, *, elf_class: int = 2, length: int = 64
) -> Path:
    """Write the start of an ELF file, as the System V ABI lays it out."""
    identity = b"\x7fELF" + bytes((elf_class, 1, 1)) + bytes(9)
    content = identity + struct.pack("<HHI", 3, machine, 1) + bytes(40)
    path.write_bytes(content[:length])
    return path


def elf(name: str, machine: int) -> ElfFile:
    return ElfFile(Path(name), machine)


def test_the_machine_is_read_from_the_header(tmp_path: Path) -> None:
    assert read_machine(write_elf(tmp_path / "a.so", ARM)) == ARM


def test_a_running_interpreter_is_read_too() -> None:
    assert read_machine(Path("/proc/self/exe")) in MACHINES.values()


@pytest.mark.parametrize("content", [b"", b"\x7fEL", b"import os\n"])
def test_other_files_are_no_elf_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert read_machine(tmp_path / "file") is None


def test_a_cut_or_32_bit_file_is_refused(tmp_path: Path) -> None:
    for name, options in (("cut", {"length": 18}), ("old", {"elf_class": 1})):
        path = write_elf(tmp_path / name, X86, **options)
        with pytest.raises(ToolError, match=f"{name}: expected a 64-bit"):
            read_machine(path)


def test_files_are_found_by_content_and_not_by_name(tmp_path: Path) -> None:
    write_elf(tmp_path / "vllm-rs", X86)
    (tmp_path / "text.so").write_text("a linker script")
    found = find_elf_files(tmp_path, [Path("vllm-rs"), Path("text.so")])
    assert found == [ElfFile(Path("vllm-rs"), X86)]


def test_host_objects_of_the_tag_and_device_objects_pass() -> None:
    files = [
        elf("vllm_ascend/vllm_ascend_C.cpython-311-x86_64-linux-gnu.so", X86),
        elf("vllm_ascend/libvllm_ascend_kernels.so", X86),
        elf("kernel/ascend910b/hc_pre/HcPre.o", AI_CORE),
        elf("op_impl/cpu/aicpu_kernel/impl/libtransformer_aicpu_kernels.so", ARM),
    ]
    check_elf_files(files, "cp311", "x86_64")


def test_a_host_object_of_another_machine_is_refused() -> None:
    files = [elf("vllm_ascend/lib.so", X86), elf("vllm_ascend/other.so", ARM)]
    with pytest.raises(
        ToolError, match=r"other.so: expected a binary for x86_64.*aarch"
    ):
        check_elf_files(files, "cp311", "x86_64")


def test_the_device_library_of_another_machine_is_refused() -> None:
    files = [elf("lib.so", ARM), elf("op_impl/cpu/aicpu_kernel/impl/a.so", X86)]
    with pytest.raises(ToolError, match=r"a\.so: expected a binary for aarch64"):
        check_elf_files(files, "cp311", "aarch64")


def test_an_extension_of_another_python_is_refused() -> None:
    files = [elf("vllm_ascend/C.cpython-310-x86_64-linux-gnu.so", X86)]
    check_elf_files(files, "cp310", "x86_64")
    with pytest.raises(ToolError, match="expected an extension for cpython-311"):
        check_elf_files(files, "cp311", "x86_64")


def test_a_wheel_without_host_objects_is_refused() -> None:
    with pytest.raises(ToolError, match="expected compiled kernels"):
        check_elf_files([elf("kernel/HcPre.o", AI_CORE)], "cp311", "x86_64")


def test_a_pure_wheel_has_no_binary_at_all() -> None:
    check_pure([])
    with pytest.raises(ToolError, match=r"vllm-rs: expected only Python and data"):
        check_pure([elf("vllm/vllm-rs", X86)])
