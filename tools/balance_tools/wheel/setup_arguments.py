"""The arguments of setuptools; setup.py at the root calls this.

setuptools copies the packages and writes the metadata. All else is added when the
content of the wheel is complete: kernels, further dist-infos, the build record, the
bill of materials, upstream's licences, and modes and times that do not depend on the
machine.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from setuptools import Distribution
from setuptools.command.bdist_wheel import bdist_wheel

from balance_tools.kernels.stage import add_kernels
from balance_tools.wheel.build_record import build_record
from balance_tools.wheel.dist_info import render_entry_points, write_dist_infos
from balance_tools.wheel.plan import OURS, WheelPlan
from balance_tools.wheel.sbom import FOLDER, documents_of
from balance_tools.wheel.upstream_metadata import extras_of

# 1980-01-01, the first moment a zip archive can name. No time of a build is in a wheel,
# nor one that the builder has set.
EPOCH = "315532800"
FILE_MODE, SCRIPT_MODE = 0o644, 0o755


def setup_arguments(plan: WheelPlan) -> dict[str, Any]:
    os.environ["SOURCE_DATE_EPOCH"] = EPOCH
    upstream = plan.upstreams[plan.target.packages[0]]
    work = plan.paths.build / "wheel" / plan.choice.name
    # setuptools packs whatever an earlier build left in its folders.
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return {
        "name": plan.settings.name,
        "version": plan.version,
        "description": plan.settings.summary,
        "long_description": (
            f"{upstream.name} {upstream.version} with the patch series of "
            "vllm-balance. `vllm-balance info` says what is installed.\n"
        ),
        "long_description_content_type": "text/markdown",
        "author": f"{upstream.metadata['Author']}, with changes by vllm-balance",
        "license_expression": plan.target.license,
        "license_files": [],
        "classifiers": plan.classifiers,
        "python_requires": plan.python_requires,
        "packages": plan.packages,
        "package_data": {"": ["*"]},
        "include_package_data": False,
        "install_requires": list(plan.requirements),
        "extras_require": extras_of(upstream),
        "entry_points": render_entry_points(plan.entry_points),
        "zip_safe": False,
        "distclass": BinaryDistribution if plan.has_plugin else OurDistribution,
        "cmdclass": {"bdist_wheel": wheel_command(plan)},
        "options": {
            "build": {"build_base": str(work)},
            "bdist": {"bdist_base": str(work / "bdist")},
            "egg_info": {"egg_base": str(work)},
        },
    }


class OurDistribution(Distribution):
    """Takes no option from files of the builder, the machine or the interpreter."""

    def find_config_files(self) -> list[str]:
        """None; `~/.pydistutils.cfg` could compress the wheel in another way."""
        return []


class BinaryDistribution(OurDistribution):
    def has_ext_modules(self) -> bool:
        """True, for the compiled files are not listed as extensions."""
        return True


def wheel_command(plan: WheelPlan) -> type[bdist_wheel]:
    class BalanceWheel(bdist_wheel):
        def get_tag(self) -> tuple[str, str, str]:
            return plan.tag

        def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
            super().egg2dist(egginfo_path, distinfo_path)
            add_licences(plan, Path(distinfo_path))

        def write_wheelfile(
            self, wheelfile_base: str, generator: str = "vllm-balance"
        ) -> None:
            super().write_wheelfile(wheelfile_base, generator)
            dist_info = Path(wheelfile_base)
            wheel_root = dist_info.parent
            # An editable install comes here too; its wheel has no packages.
            if (wheel_root / OURS).is_dir():
                add_bill(plan, dist_info)
                complete(plan, wheel_root, self.data_dir)

    return BalanceWheel


def add_licences(plan: WheelPlan, dist_info: Path) -> None:
    """Copy the licence files into a dist-info and name them in its METADATA.

    setuptools would keep upstream's under the path they have here.
    """
    metadata = dist_info / "METADATA"
    headers, separator, body = metadata.read_text(encoding="utf-8").partition("\n\n")
    for name, source in plan.licences.items():
        headers += f"\nLicense-File: {name}"
        copy = dist_info / "licenses" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    metadata.write_text(headers + separator + body, encoding="utf-8")


def add_bill(plan: WheelPlan, dist_info: Path) -> None:
    folder = dist_info / FOLDER
    folder.mkdir()
    for name, text in documents_of(plan).items():
        (folder / name).write_text(text, encoding="utf-8")


def complete(plan: WheelPlan, wheel_root: Path, data_dir: str) -> None:
    """Add build record, kernels and dist-infos to the unpacked wheel, and set modes.

    `data_dir` is the name of the wheel's `.data` folder.
    """
    record = wheel_root / OURS / "build.json"
    record.write_text(build_record(plan, wheel_root), encoding="utf-8")
    if plan.kernels is not None:
        add_kernels(plan.kernels, wheel_root)
    # Where the packages of this wheel go too: a RECORD names them relative to it.
    library = wheel_root / data_dir / ("platlib" if plan.has_plugin else "purelib")
    write_dist_infos(plan, library)
    # A file that is started by its own first line may be executed. Its mode is not
    # asked: that depends on how the sources came here.
    for path in filter(Path.is_file, wheel_root.rglob("*")):
        with path.open("rb") as file:
            path.chmod(SCRIPT_MODE if file.read(2) == b"#!" else FILE_MODE)
