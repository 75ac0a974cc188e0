"""Materialise `vllm/` and `vllm_ascend/`: upstream, our patches, our own files."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from balance_tools.errors import ToolError
from balance_tools.files import disk_errors, exclusive, named_in_part, remove_tree
from balance_tools.manifest import (
    MANIFEST_NAME,
    files_of_ours,
    same_content,
    take_manifest,
)
from balance_tools.paths import Paths
from balance_tools.series.apply import apply_series
from balance_tools.upstream.fetch import fetch
from balance_tools.upstream.lock import Lock, load_lock
from balance_tools.upstream.pristine import Fetch, ensure_pristine
from balance_tools.vendoring import swap
from balance_tools.vendoring.vendored import Package, findings, look


@dataclass(frozen=True)
class Effects:
    """What `vendor` does to the world, for tests to replace."""

    get: Fetch = fetch
    exchange: Callable[[Path, Path], bool] = swap.exchange
    step: Callable[[str], None] = lambda name: None
    """Called with the name of each step as it begins."""


def vendor(
    paths: Paths,
    lock: Lock,
    names: Sequence[str],
    *,
    discard_edits: bool = False,
    effects: Effects = Effects(),
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
                materialise(paths, look(paths, lock, name), discard_edits, effects)
                for name in names
            ]
        finally:
            settle(paths, lock)


def settle(paths: Paths, lock: Lock) -> None:
    """Recover from a run that was interrupted and clear what it left."""
    for name in lock.packages:
        swap.recover(paths.staging, paths.vendored(name), files_of_ours)
    remove_tree(paths.staging)


def materialise(
    paths: Paths, package: Package, discard_edits: bool, effects: Effects
) -> str:
    """Make one tree: stage, patch, check, add what is ours, swap in."""
    start = time.monotonic()
    if is_up_to_date(package, discard_edits):
        return f"{package.label}: up to date"
    effects.step("extract")
    pristine = ensure_pristine(package.artifact, paths, effects.get)
    effects.step("stage")
    new = stage(pristine, paths.staging, package)
    effects.step("patch")
    apply_series(package.series, new.parent)
    manifest = take_manifest(new, package.inputs)
    effects.step("check")
    ours = refuse_losses(package, new, discard_edits)
    effects.step("copy ours")
    swap.copy_files(package.tree, new, ours)
    manifest.write(new / MANIFEST_NAME)
    swap.swap_in(paths.staging, package.tree, effects.step, effects.exchange)
    return (
        f"{package.label}: {len(manifest.files)} files, {len(package.series.patches)} "
        f"patches, {len(ours)} files of ours, {time.monotonic() - start:.1f} s"
    )


def is_up_to_date(package: Package, discard_edits: bool) -> bool:
    """Whether nothing is to be done; what is in the way is refused."""
    if not package.is_current or package.manifest is None:
        return False
    edited = [] if discard_edits else package.manifest.changed(package.tree)
    refuse_edits(package, edited)
    refuse_tracked(package, package.tracked & package.manifest.files.keys())
    return not findings(package)


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


def refuse_losses(package: Package, new: Path, discard_edits: bool) -> list[str]:
    """Refuse to lose anything to the new tree; returns the files of ours to keep.

    A file that holds what the new tree holds is in nobody's way: so it is after an
    edit went into a patch, or when the manifest was lost.
    """
    if package.manifest is not None and not discard_edits:
        edited = [
            path
            for path in package.manifest.changed(package.tree)
            if not _same(package.tree / path, new / path)
        ]
        refuse_edits(package, edited)
    refuse_tracked(package, {path for path in package.tracked if in_the_way(path, new)})
    ours = package.ours()
    blocked = [path for path in ours if in_the_way(path, new)]
    foreign = [p for p in blocked if not _same(package.tree / p, new / p)]
    if foreign:
        raise ToolError(
            f"{_list(package, foreign)}: expected no such file here, for upstream "
            f"{package.label} has one, found one that `vendor` did not write; move it "
            f"away (or, if nothing in {package.name}/ is yours, remove the folder and "
            f"run `git checkout -- {package.name}`)"
        )
    return [path for path in ours if path not in set(blocked)]


def in_the_way(path: str, new: Path) -> bool:
    """Whether the new tree has a file (or a folder) where `path` has to go."""
    if os.path.lexists(new / path):
        return True
    parents = PurePosixPath(path).parents
    return any(os.path.lexists(new / p) and not (new / p).is_dir() for p in parents)


def refuse_edits(package: Package, edited: Sequence[str]) -> None:
    """Refuse a tree in which upstream's files were edited."""
    if edited:
        raise ToolError(
            f"{_list(package, edited)}: expected the content that `vendor` wrote, "
            "found it edited by hand; refresh the edit into a patch of "
            f"patches/{package.name}, or drop it with --discard-edits"
        )


def refuse_tracked(package: Package, both: frozenset[str] | set[str]) -> None:
    """Refuse a repository that tracks files that upstream has too."""
    if both:
        raise ToolError(
            f"{_list(package, sorted(both))}: expected only files of ours to be "
            f"tracked by git, found that upstream {package.label} has it too; rename "
            "ours, or untrack upstream's with `git rm --cached`"
        )


def _same(one: Path, other: Path) -> bool:
    return os.path.lexists(one) and os.path.lexists(other) and same_content(one, other)


def _list(package: Package, paths: Sequence[str]) -> str:
    return named_in_part([f"{package.name}/{path}" for path in paths])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `vendor`."""
    add = parser.add_argument
    add("--only", choices=("vllm", "vllm_ascend"), help="this package alone")
    text = "change nothing; compare every hash and exit with 1 on a difference"
    add("--check", action="store_true", help=text)
    text = "overwrite upstream's files that were edited by hand"
    add("--discard-edits", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Run `vendor`."""
    paths = Paths.find()
    lock = load_lock(paths.lock)
    names = [args.only] if args.only else list(lock.packages)
    if not args.check:
        for line in vendor(paths, lock, names, discard_edits=args.discard_edits):
            print(line)
        return 0
    found = []
    with exclusive(paths.vendor_lock), disk_errors(paths.root):
        for name in names:
            found += findings(look(paths, lock, name), thorough=True)
    for line in found or [f"{name}/: as the lock and the series say" for name in names]:
        print(line)
    return 1 if found else 0
