"""Unpack sdists and wheels, and refuse any that would write outside."""

from __future__ import annotations

import gzip
import os
import stat
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
            not a file, a folder or a link below its top folder.
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
    """Unpack a checked member as its content alone: no owner, no special mode bits.

    Debian 12's Python, 3.11.2, does not have the filter that does this.
    """
    if hasattr(tarfile, "data_filter"):
        tar.extract(member, dest, filter="data")
        return
    executable = member.isdir() or member.mode & 0o100
    member.mode = 0o755 if executable else 0o644
    member.uid, member.gid, member.uname, member.gname = (
        os.getuid(),
        os.getgid(),
        "",
        "",
    )
    tar.extract(member, dest)


def check_wheel(path: Path, wheel: zipfile.ZipFile) -> None:
    """Refuse a wheel with a member that is not a plain file below its top."""
    for entry in wheel.infolist():
        _check_name(path, entry.filename)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
            raise _escape(path, entry.filename, "is not a plain file")


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
    """Refuse a member that is written, or leads, outside the folder."""
    links: set[PurePosixPath] = set()
    for member in members:
        path = _check_name(archive, member.name)
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise _escape(archive, member.name, "is a device or another special file")
        if any(parent in links for parent in path.parents):
            raise _escape(archive, member.name, "would be written through a link")
        if member.issym() or member.islnk():
            # A hard link counts from the top of the archive, a symbolic one from
            # its own folder.
            base = path.parent if member.issym() else PurePosixPath()
            if not _stays_inside(base, member.linkname):
                raise _escape(archive, member.name, f"links to {member.linkname!r}")
            links.add(path)


def _check_name(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts:
        raise _escape(archive, name, "does not stay below the folder")
    return path


def _stays_inside(base: PurePosixPath, target: str) -> bool:
    """Whether a link target, seen from `base`, stays below the top of the archive."""
    if PurePosixPath(target).is_absolute():
        return False
    depth = len(base.parts)
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 1:
            return False
    return True


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
