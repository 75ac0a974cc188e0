"""The source archive of a release: our own files, and which commit they are.

Never upstream's: git tracks none of those, and what git ignores is left out. Whoever
unpacks it runs `make vendor`, as in a clone, and gets the same wheels.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

from balance_tools.wheel.source_state import (
    ARCHIVE_RECORD,
    commit_time_s,
    render_record,
    source_files,
    source_state,
)

NAME = "vllm_balance"
"""Not `vllm`: pip must never take it for a wheel's source and try to build it."""


def write_sdist(root: Path, version: str, folder: Path) -> Path:
    """Write the archive of the checkout at `root`; the same commit, the same bytes."""
    top = f"{NAME}-{version}"
    time_s = commit_time_s(root)
    files = source_files(root)
    generated = {
        "PKG-INFO": _pkg_info(version),
        ARCHIVE_RECORD: render_record(source_state(root), root, files),
    }
    path = folder / f"{top}.tar.gz"
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=time_s) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted([*files, *generated]):
            if name in generated:
                content, script = generated[name].encode(), False
            else:
                content = (root / name).read_bytes()
                script = os.access(root / name, os.X_OK)
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(content)
            member.mtime = time_s
            member.mode = 0o755 if script else 0o644
            archive.addfile(member, io.BytesIO(content))
    return path


def _pkg_info(version: str) -> str:
    return (
        "Metadata-Version: 2.1\n"
        f"Name: {NAME.replace('_', '-')}\n"
        f"Version: {version}\n"
        "Summary: Patches, files of ours, tools; `make vendor` fetches the rest\n"
        "License: Apache-2.0\n"
        "Requires-Python: >=3.10\n"
    )
