"""The prebuilt Ascend kernels: proven to be built from the pinned csrc, then unpacked.

Upstream publishes kernels in its wheels, and not for every post-release. The proof has
two halves: the csrc of the sdist that the wheels belong to is the pinned csrc, and the
Python files in the wheel are those of that sdist.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from balance_tools.distribution import SETTINGS_NAME, Choice
from balance_tools.errors import ToolError
from balance_tools.files import disk_errors, named_in_part, sha256_of
from balance_tools.kernels.stage import BUILD_INFO, build_info_text, stage_of
from balance_tools.manifest import walk
from balance_tools.paths import Paths
from balance_tools.upstream.fetch import fetch
from balance_tools.upstream.lock import Artifact, Lock
from balance_tools.upstream.pristine import Fetch, ensure_pristine

PACKAGE = "vllm_ascend"
# A vendor's operator package: its own Python files are part of the kernels.
OPERATORS = f"{PACKAGE}/_cann_ops_custom/"


@dataclass(frozen=True)
class KernelWheel:
    """A verified kernel wheel and what was found in it."""

    artifact: Artifact
    path: Path
    compiled: tuple[str, ...]
    """What its build made beside Python: the names to take, `vllm_ascend/…`."""
    generated: tuple[str, ...]
    """Python files that its build wrote; ours has to write its own."""


def tree_hashes(folder: Path) -> dict[str, str]:
    """The sha256 of every file below a folder, by its posix path."""
    return {path: sha256_of(folder / path) for path in sorted(walk(folder))}


def prove_same_csrc(lock: Lock, paths: Paths, get: Fetch = fetch) -> None:
    """Show that the kernels' csrc is the pinned one.

    Raises:
        ToolError: it is not, or the lock has no kernel wheels.
    """
    built_from = kernel_sdist(lock)
    one = tree_hashes(ensure_pristine(lock.vllm_ascend, paths, get) / "csrc")
    other = tree_hashes(ensure_pristine(built_from, paths, get) / "csrc")
    if not one:
        raise ToolError(
            f"{lock.vllm_ascend.filename}: expected a folder csrc/ with the kernels' "
            "sources, found none; see whether the lock names the right file"
        )
    differing = sorted(
        path for path in one.keys() | other.keys() if one.get(path) != other.get(path)
    )
    if differing:
        raise ToolError(
            f"{named_in_part([f'csrc/{path}' for path in differing])}: expected the "
            f"same in {lock.vllm_ascend.filename} and {built_from.filename}, found "
            f"{len(differing)} files that differ; the prebuilt kernels do not belong "
            "to the pinned sources, build the kernels from source instead"
        )


def kernel_sdist(lock: Lock) -> Artifact:
    """The sdist of the kernel wheels' release.

    Raises:
        ToolError: no kernel wheels are locked.
    """
    if lock.kernel_sdist is None:
        raise ToolError(
            "upstream.toml: expected kernel wheels to be locked, found none, for "
            f"vllm-ascend {lock.vllm_ascend.version} has none; build the kernels from "
            "source"
        )
    return lock.kernel_sdist


def fetch_kernels(
    lock: Lock,
    python: str = "cp311",
    arch: str = "x86_64",
    *,
    paths: Paths | None = None,
    get: Fetch = fetch,
) -> KernelWheel:
    """Fetch the kernel wheel for an interpreter and a machine, and prove it.

    Raises:
        ToolError: there is none, it cannot be had, or it does not belong to the pinned
            sources.
    """
    paths = paths or Paths.find()
    prove_same_csrc(lock, paths, get)
    artifact = lock.kernel_wheel(python, arch)
    wheel = get(artifact, paths)
    sdist = ensure_pristine(kernel_sdist(lock), paths, get)
    return _inspect(artifact, wheel, sdist)


def extract_kernels(wheel: KernelWheel, dest: Path) -> list[Path]:
    """Write the compiled files below `dest`, as `dest/vllm_ascend/…`; returns them."""
    written = []
    with zipfile.ZipFile(wheel.path) as archive, disk_errors(dest):
        for name in wheel.compiled:
            path = Path(archive.extract(name, dest))
            # zipfile drops the mode; only "may be executed" matters.
            mode = archive.getinfo(name).external_attr >> 16
            path.chmod(0o755 if mode & 0o111 else 0o644)
            written.append(path)
    return written


def _inspect(artifact: Artifact, wheel: Path, sdist: Path) -> KernelWheel:
    """Sort the wheel's files, and compare its Python files with the sdist's."""
    compiled: list[str] = []
    generated: list[str] = []
    differing: list[str] = []
    python = {
        f"{PACKAGE}/{path}" for path in walk(sdist / PACKAGE) if path.endswith(".py")
    }
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith("/") or not name.startswith(f"{PACKAGE}/"):
                continue
            original = sdist / name
            is_python = name.endswith(".py") and not name.startswith(OPERATORS)
            if not original.is_file():
                (generated if is_python else compiled).append(name)
            elif is_python and archive.read(name) != original.read_bytes():
                differing.append(name)
        differing += sorted(python - set(archive.namelist()))
    if differing:
        raise ToolError(
            f"{artifact.filename}: expected the Python files of {sdist.name}, found "
            f"others, or none, of {named_in_part(differing)}; the wheel was not built "
            "from that sdist, build the kernels from source"
        )
    if not any(name.endswith(".so") for name in compiled):
        raise ToolError(
            f"{artifact.filename}: expected compiled kernels, found no shared object; "
            "lock a release whose wheels have them"
        )
    return KernelWheel(artifact, wheel, tuple(compiled), tuple(generated))


def stage_kernels(paths: Paths, lock: Lock, choice: Choice, device_type: str) -> None:
    """Fetch, prove and unpack the kernels of one wheel where the build looks for them.

    Raises:
        ToolError: as `fetch_kernels`, or their build generated what ours would not.
    """
    kernels = fetch_kernels(lock, choice.python, choice.arch, paths=paths)
    with zipfile.ZipFile(kernels.path) as archive:
        generated = {name: archive.read(name).decode() for name in kernels.generated}
    if generated != {BUILD_INFO: build_info_text(device_type)}:
        raise ToolError(
            f"{kernels.artifact.filename}: expected its build to have generated only "
            f"{BUILD_INFO} for device {device_type}, found {generated}; fix "
            f"{SETTINGS_NAME} or teach tools/balance_tools/kernels/stage.py"
        )
    stage = stage_of(paths, lock, choice, device_type)
    if stage is not None and stage.made_from() is None:
        stage.clear()
        extract_kernels(kernels, stage.folder)
        stage.finish()
