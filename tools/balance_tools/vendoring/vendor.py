"""Materialise `vllm/` and `vllm_ascend/`: upstream, our patches, our own files."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from balance_tools.errors import ToolError
from balance_tools.files import disk_errors, exclusive, named_in_part, remove_tree
from balance_tools.manifest import (
    MANIFEST_NAME,
    Manifest,
    files_of_ours,
    same_content,
    take_manifest,
)
from balance_tools.paths import Paths
from balance_tools.run import listed_by_git
from balance_tools.series.apply import Series, apply_series, load_series
from balance_tools.upstream.fetch import fetch
from balance_tools.upstream.lock import Artifact, Lock, load_lock
from balance_tools.upstream.pristine import Fetch, ensure_pristine
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
    def label(self) -> str:
        """Name and version, for messages."""
        return f"{self.name} {self.artifact.version}"

    @property
    def is_current(self) -> bool:
        """Whether upstream's files are as the lock, the series and the manifest say."""
        known = self.manifest
        return (
            known is not None
            and known.inputs == self.inputs
            and not known.missing(self.tree)
            and not known.changed(self.tree)
        )


def look(paths: Paths, lock: Lock, name: str) -> Package:
    """Read the state of one vendored package."""
    tree, in_git = paths.vendored(name), (paths.root / ".git").exists()
    tracked = listed_by_git(paths.root, "--", name) if in_git else []
    return Package(
        name=name,
        artifact=lock.packages[name],
        series=load_series(paths.patches(name)),
        series_sha256=series_sha256(paths.root, name),
        tree=tree,
        manifest=Manifest.read(tree / MANIFEST_NAME),
        tracked=frozenset(path.removeprefix(f"{name}/") for path in tracked),
    )


def vendor(
    paths: Paths,
    lock: Lock,
    names: Sequence[str],
    *,
    discard_edits: bool = False,
    get: Fetch = fetch,
) -> list[str]:
    """Bring the named packages up to date; returns one line on each.

    Nothing is written when all is as it should be.

    Raises:
        ToolError: something is in the way or fails; the old tree is left.
    """
    with exclusive(paths.vendor_lock), disk_errors(paths.staging):
        settle(paths, lock)
        try:
            return [
                materialise(paths, look(paths, lock, name), discard_edits, get)
                for name in names
            ]
        finally:
            settle(paths, lock)


def settle(paths: Paths, lock: Lock) -> None:
    """Put back a tree that a run had moved away when it was stopped, and clear up."""
    for name in lock.packages:
        old, tree = paths.staging / "old" / name, paths.vendored(name)
        if old.is_dir() and not tree.exists():
            old.rename(tree)
    remove_tree(paths.staging)


def materialise(paths: Paths, package: Package, discard_edits: bool, get: Fetch) -> str:
    """Make one tree: stage upstream, patch it, add what is ours, swap it in."""
    start = time.monotonic()
    pristine = ensure_pristine(package.artifact, paths, get)  # a build reads it, too
    if package.is_current and not tracked_of_upstream(package):
        return f"{package.label}: up to date"
    new = stage(pristine, paths.staging, package)
    apply_series(package.series, new.parent)
    manifest = take_manifest(new, package.inputs)
    ours = refuse_losses(package, manifest, new, discard_edits)
    for name in ours:
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(package.tree / name, new / name, follow_symlinks=False)
    manifest.write(new / MANIFEST_NAME)
    swap_in(new, package.tree, paths.staging / "old" / package.name)
    return (
        f"{package.label}: {len(manifest.files)} files, {len(package.series.patches)} "
        f"patches, {len(ours)} files of ours, {time.monotonic() - start:.1f} s"
    )


def swap_in(new: Path, tree: Path, old: Path) -> None:
    """Make `new` the folder `tree`; between the two moves `settle` helps."""
    old.parent.mkdir(exist_ok=True)
    if tree.exists():
        shutil.move(tree, old)  # by a copy in a lower layer of an overlay file system
    new.rename(tree)


def stage(pristine: Path, staging: Path, package: Package) -> Path:
    """Copy the package folder out of the pristine sdist; returns the copy."""
    source = pristine / package.name
    if not source.is_dir():
        raise ToolError(
            f"{package.artifact.filename}: expected a folder {package.name}/ in the "
            "sdist, found none; see whether the lock names the right file"
        )
    new = staging / "new" / package.name
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source, new, symlinks=True, ignore=ignore)
    return new


def tracked_of_upstream(package: Package) -> set[str]:
    """Files of upstream that git tracks, although only what is ours may be."""
    return set(package.manifest.files if package.manifest else ()) & package.tracked


def refuse_losses(
    package: Package, manifest: Manifest, new: Path, discard_edits: bool
) -> list[str]:
    """Refuse to lose anything to the new tree; returns the files of ours to keep.

    A file that holds what the new tree holds is in nobody's way: so it is after an
    edit went into a patch, or when the manifest was lost.
    """
    if tracked := sorted(package.tracked & manifest.files.keys()):
        raise ToolError(
            f"{_named(package, tracked)}: expected only files of ours to be tracked by "
            f"git, found that upstream {package.label} has it too; rename ours, or "
            "untrack upstream's with `git rm --cached`"
        )
    tree, before = package.tree, package.manifest
    ours = files_of_ours(tree, package.tracked)
    lost = [path for path in ours if in_the_way(path, new)]
    if before is not None and not discard_edits:
        lost += before.changed(tree)
    if lost := [path for path in lost if not _same(tree / path, new / path)]:
        raise ToolError(
            f"{_named(package, lost)}: expected what `vendor` wrote, or no such file, "
            f"for {package.label} has its own, found another content; refresh an edit "
            f"into a patch of patches/{package.name} or drop it with --discard-edits, "
            "and move a file of yours away"
        )
    return [path for path in ours if not in_the_way(path, new)]


def in_the_way(path: str, new: Path) -> bool:
    """Whether the new tree has a file (or a folder) where `path` has to go."""
    if os.path.lexists(new / path):
        return True
    parents = PurePosixPath(path).parents
    return any(os.path.lexists(new / p) and not (new / p).is_dir() for p in parents)


def _named(package: Package, paths: Sequence[str]) -> str:
    return named_in_part([f"{package.name}/{path}" for path in paths])


def _same(one: Path, other: Path) -> bool:
    return os.path.lexists(one) and os.path.lexists(other) and same_content(one, other)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `vendor`."""
    add = parser.add_argument
    add("--only", choices=("vllm", "vllm_ascend"), help="this package alone")
    text = "overwrite upstream's files that were edited by hand"
    add("--discard-edits", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Run `vendor`."""
    paths = Paths.find()
    lock = load_lock(paths.lock)
    names = [args.only] if args.only else list(lock.packages)
    for line in vendor(paths, lock, names, discard_edits=args.discard_edits):
        print(line)
    return 0
