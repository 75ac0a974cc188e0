"""What is installed in this environment, read from the metadata that pip left."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class RecordedFile:
    """One line of a RECORD."""

    path: Path
    """Absolute, normalised."""
    sha256: str | None
    """URL-safe base64 without padding, as RECORD has it; None where it has none."""


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
    def files(self) -> tuple[RecordedFile, ...]:
        """What its RECORD lists; empty where it has none."""
        return tuple(_recorded(self.distribution))


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


def _recorded(distribution: Distribution) -> Iterator[RecordedFile]:
    for file in distribution.files or ():
        path = os.path.normpath(str(distribution.locate_file(file)))
        sha256 = file.hash.value if file.hash and file.hash.mode == "sha256" else None
        yield RecordedFile(Path(path), sha256)
