"""What is installed in this environment, read from the metadata that pip left."""

from __future__ import annotations

import base64
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
    """One installed distribution."""

    name: str
    """Normalised: `vllm-ascend`."""
    version: str
    folder: Path
    """Where its packages lie, e.g. `…/site-packages`."""
    distribution: Distribution

    @property
    def files(self) -> dict[Path, str | None]:
        """The absolute paths of its RECORD, each with its sha256 as written there.

        That is URL-safe base64 without padding; None where a line has none.
        """
        found: dict[Path, str | None] = {}
        for file in self.distribution.files or ():
            path = Path(os.path.normpath(str(self.distribution.locate_file(file))))
            # `pip install --target` moves scripts below its folder, and leaves RECORD.
            moved = self.folder.joinpath(*(part for part in file.parts if part != ".."))
            is_hashed = file.hash is not None and file.hash.mode == "sha256"
            sha256 = file.hash.value if file.hash and is_hashed else None
            found[moved if moved.is_file() else path] = sha256
        return found


def find_installed(*names: str) -> list[Installed]:
    """Every installed distribution of these normalised names, on the whole path.

    The same name may come up more than once; the first is the one that is imported.
    """
    found: dict[tuple[str, Path], Installed] = {}
    for name in names:
        for distribution in distributions(name=name):
            folder = Path(str(distribution.locate_file(""))).resolve()
            found.setdefault(
                (f"{name} {distribution.version}", folder),
                Installed(name, distribution.version, folder, distribution),
            )
    return list(found.values())


def folder_of(package: str) -> Path | None:
    """Where a package lies, which is not imported; None if it could not be."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def normalise(name: str) -> str:
    """The name as the packaging standard compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256_of(path: Path) -> str:
    """The sha256 of a file as RECORD writes it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
