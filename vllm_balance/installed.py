"""The installed distributions, read from the metadata that pip wrote."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Installed:
    name: str
    """Normalised: `vllm-ascend`."""
    version: str
    folder: Path
    """Where its packages lie, e.g. `…/site-packages`."""
    distribution: Distribution

    @property
    def files(self) -> dict[Path, str | None]:
        """The absolute paths of its RECORD, each with its sha256 as written there.

        That is URL-safe base64 without padding; None where a line has none. It is read
        here, since importlib.metadata of Python 3.12 leaves out what is not there.
        """
        hashes: dict[Path, str | None] = {}
        record = self.distribution.read_text("RECORD") or ""
        for name, digest, *_ in filter(None, csv.reader(record.splitlines())):
            path = Path(os.path.normpath(self.folder / name))
            # `pip install --target` moves scripts below its folder, and leaves RECORD.
            inside = (part for part in Path(name).parts if part != "..")
            moved = self.folder.joinpath(*inside)
            algorithm, _, sha256 = digest.partition("=")
            is_hashed = algorithm == "sha256"
            hashes[moved if moved.is_file() else path] = sha256 if is_hashed else None
        return hashes


def find_installed(*names: str) -> list[Installed]:
    """Every installed distribution of these normalised names, on the whole path.

    The same name may come up more than once; the first is the one that is imported.
    """
    installed: dict[tuple[str, Path], Installed] = {}
    for name in names:
        for distribution in distributions(name=name):
            folder = Path(str(distribution.locate_file(""))).resolve()
            installed.setdefault(
                (f"{name} {distribution.version}", folder),
                Installed(name, distribution.version, folder, distribution),
            )
    return list(installed.values())


def folder_of(package: str) -> Path | None:
    """Where a package lies, which is not imported; None if it could not be."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256_of(path: Path) -> str:
    """The sha256 of a file as RECORD writes it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
