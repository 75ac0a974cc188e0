"""Kernels on their way into a wheel: in a folder, with a manifest beside them.

The command that builds wheels puts them here, unpacked from an upstream wheel or
compiled; the build itself has no network and no compiler and only reads.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from balance_tools.distribution import Choice
from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.manifest import Manifest, take_manifest
from balance_tools.paths import Paths
from balance_tools.upstream.lock import Artifact, Lock

BUILD_INFO = "vllm_ascend/_build_info.py"
TABLE = "soc_to_device"
OPEN_FAMILY, OPEN_DEVICE = "ascend950", "A5"
"""The plugin takes any name of this family without listing it."""
WITHOUT_AICORE_LIBRARY = ("ascend310p", OPEN_FAMILY)
"""Chips for which the plugin's CMakeLists.txt builds no libvllm_ascend_kernels.so."""


@dataclass(frozen=True)
class Stage:
    folder: Path
    inputs: Mapping[str, str]
    """The sources of the kernels, as far as the build of a wheel can check them."""
    device_type: str
    """The plugin's name of the device: `A2`."""
    wheel: Artifact | None = None
    """Upstream's wheel that they are unpacked from; None if they are compiled."""

    @property
    def manifest_path(self) -> Path:
        return self.folder.with_name(self.folder.name + ".json")

    def made_from(self) -> Mapping[str, str] | None:
        """The inputs of the kernels; None if some files are missing or changed."""
        manifest = Manifest.read(self.manifest_path)
        fits = self.inputs.items() <= manifest.inputs.items()
        return manifest.inputs if fits and manifest.describes(self.folder) else None

    def clear(self) -> None:
        self.manifest_path.unlink(missing_ok=True)
        remove_tree(self.folder)

    def finish(self, **further: str) -> None:
        """Write the manifest of the complete kernels, with `further` inputs."""
        manifest = take_manifest(self.folder, {**self.inputs, **further})
        manifest.write(self.manifest_path)


def stage_of(
    paths: Paths, lock: Lock, choice: Choice, device_type: str | None
) -> Stage | None:
    """The stage of the kernels of one wheel; None for a wheel without.

    `device_type` is that of prebuilt kernels; else the sources know it for the chip.
    """
    folder = paths.build / "kernels"
    if choice.from_source:
        sdist = lock.vllm_ascend
        device = device_of(choice.soc, paths.unpacked(sdist.project, sdist.version))
        inputs = {"sdist": sdist.sha256, **choice.environment()}
        return Stage(folder / choice.name, inputs, device)
    if device_type is None:
        return None
    wheel = lock.kernel_wheel(choice.python, choice.arch)
    folder /= wheel.filename.removesuffix(".whl")
    return Stage(folder, {"wheel": wheel.sha256}, device_type, wheel)


def build_info_text(device_type: str) -> str:
    """The text of `_build_info.py` that the plugin's build writes for a device."""
    return f"# Auto-generated file\n__device_type__ = '{device_type}'\n"


def add_kernels(stage: Stage, wheel_root: Path) -> None:
    """Copy staged kernels into an unpacked wheel and generate what their build does."""
    if stage.made_from() is None:
        raise ToolError(
            f"{stage.folder}: expected the kernels of the wheel here, found none or "
            "others; build with `make wheel`, which fetches or compiles them"
        )
    copy = shutil.copyfile
    shutil.copytree(stage.folder, wheel_root, copy_function=copy, dirs_exist_ok=True)
    build_info = wheel_root / BUILD_INFO
    build_info.write_text(build_info_text(stage.device_type), encoding="utf-8")


def known_socs(pristine: Path) -> dict[str, str]:
    """Chip to device type (`A2`), read from the sdist's setup.py without running it.

    The short names (`910b`) are left out: csrc/build_aclnn.sh does not know them and
    would build no operators, without an error.
    """
    path = pristine / "setup.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == TABLE:
            table: dict[str, str] = ast.literal_eval(node.value)
            return {soc: dev for soc, dev in table.items() if soc.startswith("ascend")}
    raise ToolError(
        f"{path}: expected a dictionary {TABLE!r} of the chips, found none; see how "
        "upstream names them now and fix tools/balance_tools/kernels/stage.py"
    )


def device_of(soc: str, pristine: Path) -> str:
    devices = known_socs(pristine)
    if re.fullmatch(rf"{OPEN_FAMILY}[a-z0-9_]*", soc):
        return OPEN_DEVICE
    if soc not in devices:
        raise ToolError(
            f"SOC: expected one of {', '.join(devices)}, or a name that starts with "
            f"{OPEN_FAMILY}, found {soc!r}; choose the chip of your devices"
        )
    return devices[soc]
