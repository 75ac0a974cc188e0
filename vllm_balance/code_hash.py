# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A hash of code, which ranks compare and results contain."""

import hashlib
from pathlib import Path

CORE = Path(__file__).parent / "core"


def code_hash(*folders: Path) -> str:
    """Twelve hexadecimal digits that change with any Python file of the folders.

    All files count, because a list of the relevant ones would become stale; and their
    bytes, because a version number does not show that a file was edited on one host.
    """
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            content = path.read_bytes()
            name = path.relative_to(folder.parent).as_posix()
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]
