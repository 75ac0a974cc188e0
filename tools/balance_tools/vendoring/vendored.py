"""One vendored package as it is on the disk: its manifest, its edits, our files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from balance_tools.manifest import MANIFEST_NAME, Manifest, files_of_ours
from balance_tools.paths import Paths
from balance_tools.run import listed_by_git
from balance_tools.series.apply import Series, load_series
from balance_tools.upstream.lock import Artifact, Lock
from vllm_balance.fingerprint import series_sha256

# Raise it when the same inputs give another tree than before.
TREE_FORMAT = "1"


@dataclass(frozen=True)
class Package:
    """One vendored package as it is on the disk and as it should become."""

    name: str
    artifact: Artifact
    series: Series
    series_sha256: str
    tree: Path
    manifest: Manifest | None
    """What the last run put there; None before the first run."""
    tracked: frozenset[str]
    """Paths below `tree` that git tracks: ours."""

    @property
    def inputs(self) -> dict[str, str]:
        """What decides the content of the tree."""
        return {
            "project": self.artifact.project,
            "version": self.artifact.version,
            "sdist": self.artifact.sha256,
            "series": self.series_sha256,
            "format": TREE_FORMAT,
        }

    @property
    def is_current(self) -> bool:
        """Whether the tree was made from these inputs."""
        return self.manifest is not None and self.manifest.inputs == self.inputs

    @property
    def label(self) -> str:
        """Name and version, for messages."""
        return f"{self.name} {self.artifact.version}"

    def ours(self) -> list[str]:
        """The files below `tree` that no earlier run put there."""
        return files_of_ours(self.tree, self.tracked)


def look(paths: Paths, lock: Lock, name: str) -> Package:
    """Read the state of one vendored package."""
    tree = paths.vendored(name)
    return Package(
        name=name,
        artifact=lock.packages[name],
        series=load_series(paths.patches(name)),
        series_sha256=series_sha256(paths.root, name),
        tree=tree,
        manifest=Manifest.read(tree / MANIFEST_NAME),
        tracked=tracked_files(paths.root, name),
    )


def findings(package: Package, *, thorough: bool = False) -> list[str]:
    """What is not as the lock, the series and the manifest say, a line each."""
    if package.manifest is None:
        return [f"{package.name}/: not materialised"]
    if not package.is_current:
        return [f"{package.name}/: made from another lock entry or patch series"]
    edited = package.manifest.changed(package.tree, thorough=thorough)
    return [f"{package.name}/{path}: edited" for path in edited] + [
        f"{package.name}/{path}: missing"
        for path in package.manifest.missing(package.tree)
    ]


def tracked_files(root: Path, name: str) -> frozenset[str]:
    """The paths below `root/name` that git tracks; none outside a git checkout."""
    names = listed_by_git(root, "--", name) if (root / ".git").exists() else []
    return frozenset(path.removeprefix(f"{name}/") for path in names)
