"""Find the new upstream: releases by their versions, or local sdists."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import named_in_part, replacing, sha256_of
from balance_tools.paths import Paths
from balance_tools.upstream.index import Index
from balance_tools.upstream.lock import Artifact, Lock, release_of
from balance_tools.upstream.pristine import ensure_pristine
from balance_tools.upstream.resolve import resolve


def pristine_tree(artifact: Artifact, paths: Paths, package: str) -> Path:
    tree = ensure_pristine(artifact, paths)
    if not (tree / package).is_dir():
        names = sorted(path.name for path in tree.iterdir())
        raise ToolError(
            f"{artifact.filename}: expected {package}/ at its top, found "
            f"{named_in_part(names) or 'nothing'}; upstream has another layout: pack "
            "an archive with the package at the top, and give it with --sdist"
        )
    return tree


def by_version(lock: Lock, vllm: str, ascend: str | None) -> Lock:
    versions, new = (vllm, ascend or lock.vllm_ascend.version), lock
    if versions != (lock.vllm.version, lock.vllm_ascend.version):
        new = resolve(*versions, Index())
    return new if ascend else replace(lock, vllm=new.vllm)


def by_archive(
    paths: Paths, lock: Lock, vllm: Path | None, ascend: Path | None
) -> Lock:
    if vllm:
        lock = replace(lock, vllm=_cached(paths, "vllm", vllm))
    if ascend:  # its kernels are not known
        lock = Lock(lock.vllm, _cached(paths, "vllm-ascend", ascend))
    return lock


def artifact_of(archive: Path) -> Artifact:
    release = release_of(archive.name)
    if release is None or not archive.is_file():
        raise ToolError(
            f"{archive}: expected an sdist with a name such as vllm-0.30.0.tar.gz, "
            "found none; pack a folder with `tar czf`, or rename the archive"
        )
    project, version = release
    size = archive.stat().st_size
    return Artifact(project, str(version), archive.name, sha256_of(archive), size)


def _cached(paths: Paths, project: str, archive: Path) -> Artifact:
    artifact = artifact_of(archive)
    if artifact.project != project:
        raise ToolError(
            f"{archive}: expected an sdist of {project}, found one of "
            f"{artifact.project}; give the right file"
        )
    with replacing(paths.cached(artifact.sha256, artifact.filename)) as part:
        shutil.copyfile(archive, part)
    return artifact
