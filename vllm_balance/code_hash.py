# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Which code decided or computed: ranks compare it, and results carry it."""

import hashlib
from pathlib import Path

CORE = Path(__file__).parent / "core"


def code_hash(*folders: Path) -> str:
    """Twelve hexadecimal digits, others when any Python file of the folders is.

    All files, because a list of those that matter would be forgotten; and their bytes,
    because a version number does not show that somebody edited a file on one host.
    """
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            content = path.read_bytes()
            name = path.relative_to(folder.parent).as_posix()
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]
