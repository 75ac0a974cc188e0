"""The hashes that tie an installed wheel to a checkout: of the lock, of a series.

Standard library only: the build and the installed wheel use the same functions.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

LOCK = "upstream.toml"
PACKAGES = ("vllm", "vllm_ascend")


def lock_sha256(checkout: Path) -> str:
    """The sha256 of the lock file of a checkout, byte for byte."""
    return hashlib.sha256((checkout / LOCK).read_bytes()).hexdigest()


def series_sha256(checkout: Path, package: str) -> str:
    """The sha256 of the patches that the series of `package` names, in its order.

    Each patch counts with its name and its bytes; comments in the series do not.
    """
    folder = checkout / "patches" / package
    digest = hashlib.sha256()
    for line in (folder / "series").read_text(encoding="utf-8").splitlines():
        name = line.partition("#")[0].strip()
        if name:
            patch = (folder / name).read_bytes()
            digest.update(f"{name}\0{len(patch)}\0".encode())
            digest.update(patch)
    return digest.hexdigest()
