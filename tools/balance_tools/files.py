"""Small effects on files: hash, replace in one go, lock."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CHUNK_BYTES = 1 << 20
MOST_NAMES = 5


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def remove_tree(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def named_in_part(names: Sequence[object]) -> str:
    shown = ", ".join(map(str, names[:MOST_NAMES]))
    hidden = len(names) - MOST_NAMES
    return f"{shown} and {hidden} more" if hidden > 0 else shown


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to; what is there at the end replaces the file `path`.

    A failure leaves the old file. A crash leaves the old one or the new one, whole,
    for the content is on the disk before it gets the name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; wait, and say so, while another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another run that holds {path}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
