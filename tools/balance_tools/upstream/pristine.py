"""Upstream's sdists, unpacked as they are, below build/pristine/."""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from balance_tools.errors import ToolError
from balance_tools.files import exclusive, remove_tree
from balance_tools.manifest import Manifest, take_manifest
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.upstream.fetch import fetch
from balance_tools.upstream.lock import Artifact

BROKEN_ARCHIVE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError)


def ensure_pristine(artifact: Artifact, paths: Paths) -> Path:
    """The folder with an sdist's files, unpacked again if a file changed."""
    folder = paths.unpacked(artifact.project, artifact.version)
    stamp = paths.unpacked_manifest(folder)
    inputs = {"sdist": artifact.sha256}
    with exclusive(folder.with_name(f".{folder.name}.lock")):
        manifest = Manifest.read(stamp)
        if manifest.inputs != inputs or not manifest.describes(folder):
            archive = fetch(artifact, paths)
            stamp.unlink(missing_ok=True)
            remove_tree(folder)
            extract_sdist(archive, folder)
            take_manifest(folder, inputs).write(stamp)
    return folder


def extract_sdist(archive: Path, dest: Path) -> None:
    """Unpack a .tar.gz whose single top folder becomes `dest`.

    `dest` appears complete or not at all. Owners and special mode bits are not kept.
    """
    partial = dest.with_name(f".{dest.name}.partial")
    remove_tree(partial)
    partial.mkdir(parents=True)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = tar.getmembers()
            top = _top_folder(archive, members)
            title = f"unpacking {archive.name}"
            with progress(title, len(members), "file") as report:
                for done, member in enumerate(members, 1):
                    _extract(tar, member, partial / member.name)
                    report(done)
        (partial / top).replace(dest)
    except BROKEN_ARCHIVE as error:
        raise ToolError(
            f"{archive}: expected an archive that can be unpacked, found {error}; "
            "nothing was replaced, see whether the locked release is the right one"
        ) from error
    finally:
        remove_tree(partial)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write a member of the archive; old Pythons' `extract` keeps owners and modes."""
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None, member.name  # a regular file
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)
    path.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)


def _top_folder(archive: Path, members: list[tarfile.TarInfo]) -> str:
    """The name of the one top folder. Links are refused: no release has any."""
    for member in members:
        path = PurePosixPath(member.name)
        below = not path.is_absolute() and ".." not in path.parts
        if not below or "\\" in member.name or not (member.isreg() or member.isdir()):
            raise ToolError(
                f"{archive}: expected only files below its own folder, found "
                f"{member.name!r}; do not use this release, nothing was unpacked"
            )
    tops = sorted({PurePosixPath(member.name).parts[0] for member in members})
    if len(tops) != 1:
        raise ToolError(
            f"{archive}: expected one top folder in the sdist, found "
            f"{', '.join(tops) or 'none'}; see whether the locked file is an sdist"
        )
    return tops[0]
