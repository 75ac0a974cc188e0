"""The hashes that say what a wheel was made from: of the lock, of a series."""

from __future__ import annotations

import hashlib
from pathlib import Path

LOCK = "upstream.toml"
PACKAGES = ("vllm", "vllm_ascend")


def lock_sha256(checkout: Path) -> str:
    return hashlib.sha256((checkout / LOCK).read_bytes()).hexdigest()


def series_sha256(checkout: Path, package: str) -> str:
    """The hash of the patches that the series of `package` names, in its order.

    Order, names and bytes count, each part after its length in bytes; comments do not.
    Without a series the hash is that of no patches.
    """
    folder = checkout / "patches" / package
    digest = hashlib.sha256()
    series = folder / "series"
    listing = series.read_text(encoding="utf-8") if series.is_file() else ""
    for line in listing.splitlines():
        name = line.partition("#")[0].strip()
        for part in (name.encode(), (folder / name).read_bytes()) if name else ():
            digest.update(f"{len(part)}:".encode())
            digest.update(part)
    return digest.hexdigest()
