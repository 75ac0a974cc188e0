"""Find the new upstream: by version, from a local archive, or from a folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email import message_from_bytes
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import named_in_part, replacing, sha256_of
from balance_tools.paths import Paths
from balance_tools.rebase.journal import Plan
from balance_tools.series.apply import load_series
from balance_tools.upstream.index import Index
from balance_tools.upstream.lock import Artifact, Lock, release_of
from balance_tools.upstream.pristine import ensure_pristine
from balance_tools.upstream.resolve import resolve


@dataclass(frozen=True)
class PristineTree:
    """A pristine tree to move from or to; `label` is "vllm 0.23.0"."""

    label: str
    tree: Path


@dataclass(frozen=True)
class NewUpstream:
    """Where to move the series to."""

    name: str
    lock: Lock | None
    """None if the new upstream is a folder, which no hash can name."""
    trees: dict[str, PristineTree]


def pinned_trees(paths: Paths, lock: Lock) -> dict[str, PristineTree]:
    """Return the pristine trees of a lock, by package."""
    return {
        name: pristine_tree(artifact, paths, name)
        for name, artifact in lock.packages.items()
    }


def pristine_tree(artifact: Artifact, paths: Paths, package: str) -> PristineTree:
    """Unpack an sdist.

    Raises:
        ToolError: it has not the package where the series expects it.
    """
    tree = ensure_pristine(artifact, paths)
    if not (tree / package).is_dir():
        found = sorted(path.name for path in tree.iterdir())
        raise ToolError(
            f"{artifact.filename}: expected {package}/ at its top, found "
            f"{named_in_part(found) or 'nothing'}; upstream has another layout, so "
            "give --sdist a folder in which the package is at the top"
        )
    return PristineTree(f"{package} {artifact.version}", tree)


def plans_between(
    paths: Paths, old: Mapping[str, PristineTree], new: Mapping[str, PristineTree]
) -> tuple[Plan, ...]:
    """Return what is to be done for each package, nothing of it done yet."""
    return tuple(
        Plan(
            package=name,
            series=load_series(paths.patches(name)),
            old_tree=one.tree,
            new_tree=new[name].tree,
            old_label=one.label,
            new_label=new[name].label,
        )
        for name, one in old.items()
    )


def by_version(paths: Paths, lock: Lock, vllm: str, ascend: str | None) -> NewUpstream:
    """Return the target for two releases; without `ascend`, that one stays.

    Raises:
        ToolError: a release cannot be found.
    """
    wanted, new = (vllm, ascend or lock.vllm_ascend.version), lock
    if wanted != (lock.vllm.version, lock.vllm_ascend.version):
        new = resolve(*wanted, Index())
    if ascend is None:
        new = replace(lock, vllm=new.vllm)
    return NewUpstream(vllm, new, pinned_trees(paths, new))


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


def by_hand(
    paths: Paths, lock: Lock, name: str | None, vllm: Path | None, ascend: Path | None
) -> NewUpstream:
    """Return the target made of local sources; what is not given stays.

    Raises:
        ToolError: a source is not usable.
    """
    new, trees = lock, pinned_trees(paths, lock)
    given = {"vllm": vllm, "vllm_ascend": ascend}
    sources = {package: source for package, source in given.items() if source}
    for package, source in sources.items():
        if source.is_file():
            artifact = _cached(paths, package, source)
            trees[package] = pristine_tree(artifact, paths, package)
            if package == "vllm":
                new = replace(new, vllm=artifact)
            else:
                new = Lock(new.vllm, artifact)  # its kernels are not known
        else:
            trees[package] = _folder(package, source)
    label = trees["vllm" if vllm else "vllm_ascend"].label.split(" ", 1)[1]
    locked = all(source.is_file() for source in sources.values())
    return NewUpstream(name or label, new if locked else None, trees)


def _cached(paths: Paths, package: str, archive: Path) -> Artifact:
    """Put an archive into the cache, where the lock's files are looked for."""
    artifact = artifact_of(archive)
    if artifact.project.replace("-", "_") != package:
        raise ToolError(
            f"{archive}: expected an sdist of {package}, found one of "
            f"{artifact.project}; give the right file"
        )
    with replacing(paths.cached(artifact.sha256, artifact.filename)) as part:
        shutil.copyfile(archive, part)
    return artifact


def _folder(package: str, folder: Path) -> PristineTree:
    if not (folder / package).is_dir():
        raise ToolError(
            f"{folder}: expected an archive, or a folder with {package}/ in it; give "
            "the top folder of an unpacked sdist"
        )
    info, version = folder / "PKG-INFO", folder.resolve().name
    if info.is_file():
        version = message_from_bytes(info.read_bytes())["Version"] or version
    return PristineTree(f"{package} {version}", folder.resolve())
