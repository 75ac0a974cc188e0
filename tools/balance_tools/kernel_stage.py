"""Prebuilt kernels on their way into a wheel: unpacked, with a manifest beside them.

The command that builds wheels puts them here, with the index and the proof that they
belong to the pinned sources; the build itself has no network and only reads.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.lock import Artifact
from balance_tools.manifest import Manifest
from balance_tools.paths import Paths

BUILD_INFO = "vllm_ascend/_build_info.py"


def stage_folder(paths: Paths, wheel: Artifact) -> Path:
    """Where the kernels of a kernel wheel lie, as `vllm_ascend/…`."""
    return paths.build / "kernels" / wheel.filename.removesuffix(".whl")


def manifest_path(paths: Paths, wheel: Artifact) -> Path:
    """The manifest of that folder."""
    folder = stage_folder(paths, wheel)
    return folder.with_name(folder.name + ".json")


def is_staged(paths: Paths, wheel: Artifact) -> bool:
    """Whether the kernels lie there, complete and unchanged."""
    folder = stage_folder(paths, wheel)
    manifest = Manifest.read(manifest_path(paths, wheel))
    return (
        manifest is not None
        and manifest.inputs == {"wheel": wheel.sha256}
        and not manifest.missing(folder)
        and not manifest.changed(folder)
        and not manifest.unknown(folder)
    )


def build_info_text(device_type: str) -> str:
    """What the plugin's own build writes to `_build_info.py` for a device."""
    return f"# Auto-generated file\n__device_type__ = '{device_type}'\n"


def add_kernels(
    paths: Paths, wheel: Artifact, device_type: str, wheel_root: Path
) -> None:
    """Copy staged kernels into an unpacked wheel and generate what their build does.

    Raises ToolError when they are not staged or one is already a file of the tree.
    """
    folder = stage_folder(paths, wheel)
    if not is_staged(paths, wheel):
        raise ToolError(
            f"{folder}: expected the kernels of {wheel.filename} here, found none or "
            "others; build with `python -m balance_tools wheel`, which fetches them"
        )
    files = [path for path in folder.rglob("*") if path.is_file()]
    for source in sorted(files):
        target = wheel_root / source.relative_to(folder)
        if target.exists():
            raise ToolError(
                f"{target}: expected a compiled file to be new to the wheel, found it "
                "in the sources too; see which of both upstream ships"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    build_info = wheel_root / BUILD_INFO
    build_info.write_text(build_info_text(device_type), encoding="utf-8")
