"""Everything a wheel is made from, worked out before anything is written.

Pure reading: the settings, the lock, upstream's declarations and the choice of a wheel
become one WheelPlan.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from balance_tools.advisories.table import (
    TABLE_NAME,
    Judged,
    Table,
    load_advisories,
)
from balance_tools.distribution import (
    SETTINGS_NAME,
    Choice,
    EntryPoints,
    Settings,
    Target,
    load_settings,
    merge_entry_points,
)
from balance_tools.errors import ToolError
from balance_tools.fingerprint import series_sha256
from balance_tools.kernels.stage import Stage, stage_of
from balance_tools.manifest import MANIFEST_NAME, Manifest, files_of_ours, ignored_in
from balance_tools.paths import LOCK_NAME, Paths
from balance_tools.run import refuse_missing
from balance_tools.series.fixed import patched_in
from balance_tools.upstream.lock import Lock, load_lock
from balance_tools.wheel.requirements import (
    REQUIREMENT_FILES,
    Sourced,
    parse_requirement,
    read_requirements,
    reconcile,
)
from balance_tools.wheel.upstream_metadata import (
    entry_points_of,
    upstream_metadata,
    values_of,
)

OURS = "vllm_balance"
GUARD = "vllm-balance"
"""The name of the distribution that OURS is, in every wheel."""
PLUGIN = "vllm_ascend"
TESTED_PYTHONS = ">=3.10,<3.14"
LICENCES = ("LICENSE", "NOTICE")
UPSTREAM_LICENCES = {
    "vllm": {"LICENSE": "LICENSE"},
    PLUGIN: {
        "LICENSE": "LICENSE",
        # The sdist has this text once, with the third-party code of the kernels, and
        # the headers of the other kernel sources refer to it.
        "LICENSE.CANN-2.0": "csrc/third_party/catlass/LICENSE",
    },
}
"""By package, and by name in the wheel: the path in the sdist."""


@dataclass(frozen=True)
class WheelPlan:
    paths: Paths
    choice: Choice
    settings: Settings
    target: Target
    lock: Lock
    upstreams: Mapping[str, Distribution]
    """By vendored package: what its upstream declares."""
    requirements: tuple[str, ...]
    licences: Mapping[str, Path]
    kernels: Stage | None
    """Where the kernels lie; None for a wheel without."""
    advisories: Table

    @property
    def judged(self) -> list[Judged]:
        release = Version(self.lock.vllm.version)
        patched = patched_in(self.paths.root, self.lock)
        return self.advisories.judge(release, patched)

    @property
    def version(self) -> str:
        return self.version_of(self.target.packages[0])

    def version_of(self, package: str) -> str:
        """The version of the distribution that carries a package of upstream's.

        Its label is the chip, where kernels were built for one.
        """
        chip = re.sub(r"[-_]", ".", self.choice.soc)  # only dots may divide it
        upstream = self.upstreams[package].version
        return f"{self.settings.version(upstream)}.{chip or self.target.label}"

    @property
    def filename(self) -> str:
        return "-".join((self.settings.name, self.version, *self.tag)) + ".whl"

    @property
    def distributions(self) -> dict[str, str]:
        """Distributions for importlib.metadata: name to version, the wheel first."""
        versions = {self.settings.name: self.version, GUARD: self.version}
        if self.has_plugin:
            versions[self.upstreams[PLUGIN].name] = self.version_of(PLUGIN)
        return versions

    @property
    def has_plugin(self) -> bool:
        return PLUGIN in self.target.packages

    @property
    def tag(self) -> tuple[str, str, str]:
        """Python, ABI and platform tag; those of the kernel wheel where there is one.

        Kernels from source are for this machine: on which older systems they
        would load was not checked.
        """
        if self.choice.from_source:
            return (self.choice.python, self.choice.python, f"linux_{self.choice.arch}")
        if self.kernels is None or self.kernels.wheel is None:
            return ("py3", "none", "any")
        name = self.kernels.wheel.filename.removesuffix(".whl")
        python, abi, platform = name.split("-")[-3:]
        return (python, abi, platform)

    @property
    def python_requires(self) -> str:
        declared = self.upstreams[self.target.packages[0]].metadata["Requires-Python"]
        return str(SpecifierSet(declared or "") & SpecifierSet(TESTED_PYTHONS))

    @property
    def classifiers(self) -> list[str]:
        classifiers, allowed = [], SpecifierSet(self.python_requires)
        for line in values_of(self.upstreams[self.target.packages[0]], "Classifier"):
            python = re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line)
            if python is None or python[1] in allowed:
                classifiers.append(line)
        return classifiers

    @property
    def entry_points(self) -> EntryPoints:
        """All entry points, for the first dist-info: the others may be removed."""
        parts = [entry_points_of(self.upstreams[p]) for p in self.target.packages]
        parts += [self.target.entry_points, self.settings.guard_entry_points]
        return merge_entry_points(*parts)

    @property
    def packages(self) -> list[str]:
        """Every folder of the packages in the wheel, as a dotted package name.

        Upstream ships folders without an __init__.py too, so each folder counts.
        """
        root, excludes = self.paths.root, set(map(Path, self.target.excludes))
        folders = {
            path.parent.relative_to(root)
            for package in (*self.target.packages, OURS)
            for path in (root / package).rglob("*")
            if path.is_file()
        }
        return [
            ".".join(folder.parts)
            for folder in sorted(folders)
            if folder.name != "__pycache__"
            and excludes.isdisjoint((folder, *folder.parents))
        ]


def licence_files(root: Path, pristine: Mapping[str, Path]) -> dict[str, Path]:
    """Path below licenses/ to source, for the packages in `pristine` (their sdists)."""
    sources = {name: root / name for name in LICENCES}
    for package, folder in pristine.items():
        sources |= {
            f"{package}/{name}": folder / path
            for name, path in UPSTREAM_LICENCES[package].items()
        }
    for path in sources.values():
        if not path.is_file():
            raise ToolError(
                f"{path}: expected a licence file that the wheel has to carry, found "
                "none; restore it, or run `make vendor` if it is upstream's"
            )
    return sources


def check_trees(paths: Paths, lock: Lock, packages: Sequence[str]) -> None:
    for package in packages:
        tree = paths.vendored(package)
        manifest = Manifest.read(tree / MANIFEST_NAME)
        now = {
            "sdist": lock.packages[package].sha256,
            "series": series_sha256(paths.root, package),
        }
        if any(manifest.inputs.get(key) != value for key, value in now.items()):
            raise ToolError(
                f"{tree}: expected upstream's sources of this lock and patch series, "
                "found none or those of another; run `make vendor`"
            )
        if edited := manifest.missing(tree) or manifest.changed(tree):
            raise ToolError(
                f"{tree / edited[0]}: expected what `make vendor` wrote, found it "
                "missing or edited; refresh the edit into a patch, or run `make vendor`"
            )
        own_files = [f"{package}/{path}" for path in files_of_ours(tree)]
        if strays := sorted(ignored_in(paths.root, own_files)):
            raise ToolError(
                f"{paths.root / strays[0]}: expected only upstream's files and ours, "
                "found one that .gitignore leaves out; remove it, or give it a line "
                "there if it is ours"
            )


def check_pair(lock: Lock) -> None:
    vllm, plugin = (Version(a.version) for a in (lock.vllm, lock.vllm_ascend))
    if vllm.release[:2] != plugin.release[:2]:
        raise ToolError(
            f"{LOCK_NAME}: expected a vllm-ascend for vllm {vllm}, found {plugin}; "
            "until there is one, this release has the target reference alone"
        )


def make_plan(paths: Paths, choice: Choice) -> WheelPlan:
    if shutil.which("git"):  # without git the tracked files are unknown
        refuse_missing(paths.root)
    settings = load_settings(paths.root / SETTINGS_NAME)
    lock = load_lock(paths.lock)
    target = settings.targets[choice.target]
    if PLUGIN in target.packages:
        check_pair(lock)
    check_trees(paths, lock, target.packages)
    pristine = {
        package: paths.unpacked(artifact.project, artifact.version)
        for package, artifact in lock.packages.items()
        if package in target.packages
    }
    upstreams = {
        package: upstream_metadata(folder, package)
        for package, folder in pristine.items()
    }
    requirements: list[Sourced] = []
    for package, folder in pristine.items():
        name = REQUIREMENT_FILES[package]
        requirements += read_requirements(folder / name, f"{package} {name}")
    requirements += [parse_requirement(line, SETTINGS_NAME) for line in target.requires]
    return WheelPlan(
        paths=paths,
        choice=choice,
        settings=settings,
        target=target,
        lock=lock,
        upstreams=upstreams,
        requirements=tuple(reconcile(requirements, target.drops)),
        licences=licence_files(paths.root, pristine),
        kernels=stage_of(paths, lock, choice, target.device_type),
        advisories=load_advisories(paths.root / TABLE_NAME),
    )
