"""Unpack sdists, and refuse any that would write outside."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from balance_tools.errors import ToolError
from balance_tools.files import disk_errors, remove_tree
from balance_tools.progress import progress

BROKEN_ARCHIVE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
)


def extract_sdist(archive: Path, dest: Path) -> None:
    """Unpack a .tar.gz whose single top folder becomes `dest`.

    `dest` appears complete or not at all.

    Raises:
        ToolError: the archive is broken, has another layout, or has a member that is
            not a file or a folder below its top folder.
    """
    with _partial(dest) as partial, _archive_errors(archive, dest):
        with tarfile.open(archive, "r:gz") as tar:
            members = tar.getmembers()
            check_tar(archive, members)
            top = _top_folder(archive, members)
            with progress(f"unpacking {archive.name}", len(members), "file") as report:
                for done, member in enumerate(members, 1):
                    extract_member(tar, member, partial)
                    report(done)
        (partial / top).replace(dest)


def extract_member(tar: tarfile.TarFile, member: tarfile.TarInfo, dest: Path) -> None:
    """Unpack a checked member as its content alone: no owner, no special mode bits."""
    path = dest / member.name
    content = tar.extractfile(member)
    if content is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)


@contextmanager
def _partial(dest: Path) -> Iterator[Path]:
    """A folder beside `dest` to unpack in, which is gone afterwards."""
    partial = dest.with_name(f".{dest.name}.partial")
    with disk_errors(dest):
        remove_tree(partial)
        partial.mkdir(parents=True)
    try:
        yield partial
    finally:
        remove_tree(partial)


@contextmanager
def _archive_errors(archive: Path, dest: Path) -> Iterator[None]:
    with disk_errors(dest):
        try:
            yield
        except BROKEN_ARCHIVE as error:
            raise ToolError(
                f"{archive}: expected an archive that can be unpacked, found {error}; "
                "nothing was replaced, see whether the locked release is the right one"
            ) from error


def check_tar(archive: Path, members: list[tarfile.TarInfo]) -> None:
    """Refuse a member that is written, or leads, outside the folder.

    No release of upstream's has a link, so none is unpacked.
    """
    for member in members:
        _check_name(archive, member.name)
        if not (member.isreg() or member.isdir()):
            raise _escape(archive, member.name, "is a link, a device or another thing")


def _check_name(archive: Path, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts:
        raise _escape(archive, name, "does not stay below the folder")


def _top_folder(archive: Path, members: list[tarfile.TarInfo]) -> str:
    tops = sorted({PurePosixPath(member.name).parts[0] for member in members})
    if len(tops) != 1:
        raise ToolError(
            f"{archive}: expected one top folder in the sdist, found "
            f"{', '.join(tops) or 'none'}; see whether the locked file is an sdist"
        )
    return tops[0]


def _escape(archive: Path, name: str, why: str) -> ToolError:
    return ToolError(
        f"{archive}: expected only files below its own folder, found {name!r}, which "
        f"{why}; do not use this release, nothing was unpacked"
    )
