"""The prebuilt Ascend kernels: proven to be built from the pinned csrc, then unpacked.

Upstream publishes kernels in its wheels, and not for every post-release. The proof has
two halves: the csrc of the sdist that the wheels belong to is the pinned csrc, and the
Python files in the wheel are those of that sdist.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from balance_tools.distribution import SETTINGS_NAME, Choice
from balance_tools.errors import ToolError
from balance_tools.files import named_in_part
from balance_tools.kernels.stage import BUILD_INFO, build_info_text, stage_of
from balance_tools.manifest import take_manifest, walk
from balance_tools.paths import Paths
from balance_tools.upstream.fetch import fetch
from balance_tools.upstream.lock import Artifact, Lock
from balance_tools.upstream.pristine import ensure_pristine

PACKAGE = "vllm_ascend"
# A vendor's operator package: its own Python files are part of the kernels.
OPERATORS = f"{PACKAGE}/_cann_ops_custom/"


@dataclass(frozen=True)
class KernelWheel:
    artifact: Artifact
    path: Path
    compiled: tuple[str, ...]
    """Files that are taken from it, `vllm_ascend/…`: what was compiled."""
    generated: Mapping[str, bytes]
    """Python files that upstream's build wrote, and that our build writes itself."""


def prove_same_csrc(lock: Lock, paths: Paths) -> Path:
    if lock.kernel_sdist is None:
        raise ToolError(
            "upstream.toml: expected kernel wheels to be locked, found none, for "
            f"vllm-ascend {lock.vllm_ascend.version} has none; build the kernels from "
            "source"
        )
    artifacts = (lock.vllm_ascend, lock.kernel_sdist)
    folders = [ensure_pristine(artifact, paths) for artifact in artifacts]
    pinned, of_wheels = (take_manifest(folder / "csrc", {}).files for folder in folders)
    if not pinned:
        raise ToolError(
            f"{lock.vllm_ascend.filename}: expected a folder csrc/ with the kernels' "
            "sources, found none; see whether the lock names the right file"
        )
    differing = sorted(
        p for p in pinned.keys() | of_wheels.keys() if pinned.get(p) != of_wheels.get(p)
    )
    if differing:
        raise ToolError(
            f"{named_in_part([f'csrc/{path}' for path in differing])}: expected the "
            f"same in {lock.vllm_ascend.filename} and {lock.kernel_sdist.filename}, "
            f"found {len(differing)} files that differ; the prebuilt kernels do not "
            "belong to the pinned sources, build the kernels from source instead"
        )
    return folders[1]


def fetch_kernels(paths: Paths, lock: Lock, python: str, arch: str) -> KernelWheel:
    sdist = prove_same_csrc(lock, paths)
    artifact = lock.kernel_wheel(python, arch)
    wheel = fetch(artifact, paths)
    compiled: list[str] = []
    generated: dict[str, bytes] = {}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        of_sdist = {f"{PACKAGE}/{path}" for path in walk(sdist / PACKAGE)}
        differing = [n for n in of_sdist - names if n.endswith(".py")]
        for name in sorted(names):
            if name.endswith("/") or not name.startswith(f"{PACKAGE}/"):
                continue
            is_python = name.endswith(".py") and not name.startswith(OPERATORS)
            if name not in of_sdist and is_python:
                generated[name] = archive.read(name)
            elif name not in of_sdist:
                compiled.append(name)
            elif is_python and archive.read(name) != (sdist / name).read_bytes():
                differing.append(name)
    if differing:
        raise ToolError(
            f"{artifact.filename}: expected the Python files of {sdist.name}, found "
            f"others, or none, of {named_in_part(sorted(differing))}; the wheel was "
            "not built from that sdist, build the kernels from source"
        )
    if not any(name.endswith(".so") for name in compiled):
        raise ToolError(
            f"{artifact.filename}: expected compiled kernels, found no shared object; "
            "lock a release whose wheels have them"
        )
    return KernelWheel(artifact, wheel, tuple(compiled), generated)


def extract_kernels(wheel: KernelWheel, dest: Path) -> None:
    with zipfile.ZipFile(wheel.path) as archive:
        for name in wheel.compiled:
            path = Path(archive.extract(name, dest))
            # zipfile drops the mode; only "may be executed" matters.
            mode = archive.getinfo(name).external_attr >> 16
            path.chmod(0o755 if mode & 0o111 else 0o644)


def stage_kernels(paths: Paths, lock: Lock, choice: Choice, device_type: str) -> None:
    """Unpack proven kernels of one wheel where the build looks for them."""
    kernels = fetch_kernels(paths, lock, choice.python, choice.arch)
    if kernels.generated != {BUILD_INFO: build_info_text(device_type).encode()}:
        raise ToolError(
            f"{kernels.artifact.filename}: expected its build to have generated only "
            f"{BUILD_INFO} for device {device_type}, found {kernels.generated}; fix "
            f"{SETTINGS_NAME} or teach tools/balance_tools/kernels/stage.py"
        )
    stage = stage_of(paths, lock, choice, device_type)
    if stage is not None and stage.made_from() is None:
        stage.clear()
        extract_kernels(kernels, stage.folder)
        stage.finish()
