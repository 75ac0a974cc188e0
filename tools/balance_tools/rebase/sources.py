"""Find the new upstream: by version, from a local archive, or from a folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.parser import BytesParser
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import named_in_part, replacing, sha256_of, write_atomically
from balance_tools.paths import Paths
from balance_tools.rebase.session import Plan
from balance_tools.upstream.fetch import default_index
from balance_tools.upstream.lock import (
    Artifact,
    Lock,
    dump_lock,
    parse_lock,
    release_of,
)
from balance_tools.upstream.pristine import ensure_pristine
from balance_tools.upstream.resolve import resolve


@dataclass(frozen=True)
class PristineTree:
    """A pristine tree to rebase from or to; `label` is "vllm 0.23.0"."""

    label: str
    tree: Path


@dataclass(frozen=True)
class NewUpstream:
    """Where to rebase to.

    `lock` is None if the new upstream is a folder, which no hash can name.
    """

    name: str
    lock: Lock | None
    trees: dict[str, PristineTree]


def pinned_trees(paths: Paths, lock: Lock) -> dict[str, PristineTree]:
    """Return the pristine trees that the series are made for, by package."""
    return {
        name: PristineTree(f"{name} {artifact.version}", _tree(artifact, paths, name))
        for name, artifact in lock.packages.items()
    }


def _tree(artifact: Artifact, paths: Paths, package: str) -> Path:
    tree = ensure_pristine(artifact, paths)
    check_layout(tree, package, artifact.filename)
    return tree


def check_layout(tree: Path, package: str, archive: str) -> None:
    """Check that an unpacked sdist has the package where the series expects it.

    Args:
        tree: Its top folder.
        package: The folder of the package.
        archive: For the message.

    Raises:
        ToolError: it has not.
    """
    if not (tree / package).is_dir():
        found = sorted(path.name for path in tree.iterdir())
        raise ToolError(
            f"{archive}: expected {package}/ at its top, found "
            f"{named_in_part(found) or 'nothing'}; upstream has another layout, so "
            "give --sdist a folder in which the package is at the top"
        )


def plans_between(
    old: Mapping[str, PristineTree], new: Mapping[str, PristineTree]
) -> tuple[Plan, ...]:
    """Return what is to be done for each package, nothing of it done yet."""
    return tuple(
        Plan(name, str(one.tree), str(new[name].tree), one.label, new[name].label)
        for name, one in old.items()
    )


def by_version(paths: Paths, lock: Lock, vllm: str, ascend: str | None) -> NewUpstream:
    """Return the target for two releases; without `ascend`, that one stays.

    What was looked up once is kept, and archives in the cache are found by their
    names, so a repeated rebase needs no network.

    Raises:
        ToolError: a release cannot be found.
    """
    wanted = ascend or lock.vllm_ascend.version
    new = _lock_for(paths, lock, vllm, wanted)
    if ascend is None:
        new = replace(lock, vllm=new.vllm)
    return NewUpstream(vllm, new, pinned_trees(paths, new))


def _lock_for(paths: Paths, lock: Lock, vllm: str, ascend: str) -> Lock:
    if (lock.vllm.version, lock.vllm_ascend.version) == (vllm, ascend):
        return lock
    known = paths.cache / "locks" / f"{vllm}+{ascend}.toml"
    if known.is_file():
        return parse_lock(known.read_text(encoding="utf-8"), str(known))
    try:
        found = resolve(vllm, ascend, None, default_index())
    except ToolError as error:
        found_offline = _from_cache(paths, lock, vllm, ascend)
        if found_offline is None:
            raise
        print(f"note: {error}", file=sys.stderr)
        print("note: taking the archives in build/cache, no kernels", file=sys.stderr)
        return found_offline
    write_atomically(known, dump_lock(found))
    return found


def _from_cache(paths: Paths, lock: Lock, vllm: str, ascend: str) -> Lock | None:
    found: list[Artifact] = []
    for pinned, version in ((lock.vllm, vllm), (lock.vllm_ascend, ascend)):
        if pinned.version == version:
            found.append(pinned)
            continue
        stem = pinned.project.replace("-", "_")
        files = sorted(paths.cache.glob(f"*/{stem}-{version}.tar.gz"))
        if not files:
            return None
        found.append(artifact_of(files[0]))
    return Lock(vllm=found[0], vllm_ascend=found[1])


def artifact_of(archive: Path) -> Artifact:
    """Return the lock's entry for a local sdist.

    Raises:
        ToolError: its name is not that of an sdist.
    """
    release = release_of(archive.name)
    if release is None:
        raise ToolError(
            f"{archive}: expected a name such as vllm-0.30.0.tar.gz; rename the "
            "archive or unpack it and give the folder"
        )
    project, version = release
    size = archive.stat().st_size
    return Artifact(project, str(version), archive.name, sha256_of(archive), size)


def local_source(
    paths: Paths, package: str, given: Path
) -> tuple[PristineTree, Artifact | None]:
    """Return the tree of a local archive or folder, and its lock entry if it has one.

    Raises:
        ToolError: it is not there, or not a source of `package`.
    """
    if given.is_file():
        artifact = artifact_of(given)
        if artifact.project.replace("-", "_") != package:
            raise ToolError(
                f"{given}: expected an sdist of {package}, found one of "
                f"{artifact.project}; give the right file"
            )
        cached = paths.cached(artifact.sha256, artifact.filename)
        if not cached.is_file():
            with replacing(cached) as part:
                shutil.copyfile(given, part)
        tree = _tree(artifact, paths, package)
        return PristineTree(f"{package} {artifact.version}", tree), artifact
    if not (given / package).is_dir():
        raise ToolError(
            f"{given}: expected an archive, or a folder with {package}/ in it; give "
            "the top folder of an unpacked sdist"
        )
    return PristineTree(f"{package} {version_of(given)}", given.resolve()), None


def version_of(tree: Path) -> str:
    """Return the version in a tree's PKG-INFO, or the folder's name."""
    info = tree / "PKG-INFO"
    if info.is_file():
        version = BytesParser().parsebytes(info.read_bytes(), headersonly=True)[
            "Version"
        ]
        if version:
            return str(version)
    return tree.resolve().name


def by_hand(
    paths: Paths, lock: Lock, name: str | None, vllm: Path | None, ascend: Path | None
) -> NewUpstream:
    """Return the target made of local sources; what is not given stays.

    Raises:
        ToolError: a source is not usable.
    """
    sources = pinned_trees(paths, lock)
    new: Lock | None = lock
    for package, given in (("vllm", vllm), ("vllm_ascend", ascend)):
        if given is None:
            continue
        sources[package], artifact = local_source(paths, package, given)
        if artifact is None:
            new = None
        elif new is not None:
            new = (
                replace(new, vllm=artifact)
                if package == "vllm"
                else replace(
                    new, vllm_ascend=artifact, kernel_sdist=None, kernel_wheels=()
                )
            )
    label = sources["vllm" if vllm else "vllm_ascend"].label.split(" ", 1)[1]
    return NewUpstream(name or label, new, sources)
