"""Materialise `vllm/` and `vllm_ascend/`: upstream, our patches, our own files."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from balance_tools.errors import ToolError
from balance_tools.files import exclusive, named_in_part, remove_tree
from balance_tools.fingerprint import series_sha256
from balance_tools.manifest import (
    MANIFEST_NAME,
    Manifest,
    content_sha256,
    files_of_ours,
)
from balance_tools.paths import Paths
from balance_tools.run import listed_by_git, refuse_missing
from balance_tools.series.apply import Series, load_series, patched_files
from balance_tools.upstream.lock import Artifact, Lock, load_lock
from balance_tools.upstream.pristine import ensure_pristine


@dataclass(frozen=True)
class Package:
    name: str
    artifact: Artifact
    series: Series
    series_sha256: str
    tree: Path
    manifest: Manifest
    """The files that the last run wrote; empty before the first run."""
    tracked: frozenset[str]
    """Paths below `tree` that git tracks, which are ours."""

    @property
    def inputs(self) -> dict[str, str]:
        return {
            "project": self.artifact.project,
            "version": self.artifact.version,
            "sdist": self.artifact.sha256,
            "series": self.series_sha256,
        }

    @property
    def label(self) -> str:
        return f"{self.name} {self.artifact.version}"

    @property
    def is_current(self) -> bool:
        manifest, tree = self.manifest, self.tree
        return manifest.inputs == self.inputs and not (
            any(files(tree) for files in (manifest.missing, manifest.changed))
            or self.tracked & {*manifest.files}
        )


def look(paths: Paths, lock: Lock, name: str) -> Package:
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
) -> list[str]:
    """Bring the named packages up to date; returns one line on each.

    Nothing is written when all is as it should be. A run that was stopped is finished
    by the next one.
    """
    refuse_missing(paths.root)
    with exclusive(paths.vendor_lock):
        packages = [look(paths, lock, name) for name in names]
        return [_materialise(paths, package, discard_edits) for package in packages]


def _materialise(paths: Paths, package: Package, discard_edits: bool) -> str:
    start, tree, name = time.monotonic(), package.tree, package.name
    pristine = ensure_pristine(package.artifact, paths)  # a build reads it, too
    if package.is_current:
        return f"{package.label}: up to date"
    patched = {
        path.removeprefix(f"{name}/"): content
        for path, content in patched_files(package.series, pristine).items()
    }
    upstream = Manifest.read(paths.unpacked_manifest(pristine))
    files = {
        path.removeprefix(f"{name}/"): sha256
        for path, sha256 in upstream.files.items()
        if path.startswith(f"{name}/")
    }
    files |= {path: hashlib.sha256(text).hexdigest() for path, text in patched.items()}
    own_files = _refuse_losses(package, files, discard_edits)
    # Without inputs a tree is not complete: whatever is listed will be replaced.
    tree.mkdir(exist_ok=True)
    stale = package.manifest.files.keys() - files.keys() - {*own_files}
    Manifest({}, {**package.manifest.files, **files}).write(tree / MANIFEST_NAME)
    for path in stale:
        (tree / path).unlink(missing_ok=True)
    for base, folders, _ in os.walk(tree, topdown=False):
        if "__pycache__" in folders:
            remove_tree(Path(base, "__pycache__"))
        if not any(Path(base).iterdir()):
            Path(base).rmdir()
    for path, sha256 in files.items():
        if content_sha256(tree / path) != sha256:
            (tree / path).unlink(missing_ok=True)
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(pristine / name / path, tree / path)
            if path in patched:
                (tree / path).write_bytes(patched[path])
    Manifest(package.inputs, files).write(tree / MANIFEST_NAME)
    return (
        f"{package.label}: {len(files)} files, {len(package.series.patches)} patches, "
        f"{len(own_files)} files of ours, {time.monotonic() - start:.1f} s"
    )


def _refuse_losses(
    package: Package, files: dict[str, str], discard_edits: bool
) -> list[str]:
    """Refuse to lose anything to the new tree; returns the files of ours.

    A file whose content is that of the new tree is accepted, as after an edit went into
    a patch, or when the manifest was lost.
    """
    if tracked := sorted(package.tracked & files.keys()):
        raise ToolError(
            f"{_named(package, tracked)}: expected only files of ours to be tracked by "
            f"git, found that upstream {package.label} has it too; rename ours, or "
            "untrack upstream's with `git rm --cached`"
        )
    tree, before = package.tree, package.manifest
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
    own_files, lost = [], []
    for path in files_of_ours(tree, package.tracked):
        parents = {str(parent) for parent in PurePosixPath(path).parents}
        if path in folders or parents & files.keys():
            lost.append(path)
        elif path not in files:
            own_files.append(path)
        elif content_sha256(tree / path) != files[path]:
            lost.append(path)
    if before.inputs and not discard_edits:
        edited = before.changed(tree)
        lost += [p for p in edited if content_sha256(tree / p) != files.get(p)]
    if lost:
        raise ToolError(
            f"{_named(package, lost)}: expected what `vendor` wrote, or no such file, "
            f"for {package.label} has its own, found another content; refresh an edit "
            f"into a patch of patches/{package.name} or drop it with --discard-edits, "
            "and move a file of yours away"
        )
    return own_files


def _named(package: Package, paths: Sequence[str]) -> str:
    return named_in_part([f"{package.name}/{path}" for path in paths])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "overwrite upstream's files that were edited by hand"
    parser.add_argument("--discard-edits", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    paths = Paths.find()
    lock = load_lock(paths.lock)
    for line in vendor(
        paths, lock, list(lock.packages), discard_edits=args.discard_edits
    ):
        print(line)
    return 0
