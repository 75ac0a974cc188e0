# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A hash of what a simulation decides with, which results carry. No import of vLLM."""

import hashlib
from pathlib import Path

_BALANCE = Path(__file__).parents[2] / "v1" / "core" / "sched" / "balance"
_SOURCES = ("policies/*.py", "dispatch.py", "measure/ages.py")


def policies_fingerprint() -> str:
    """Twelve hexadecimal digits, the same for the same sources."""
    sources = hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(_BALANCE.glob(pattern)):
            sources.update(path.read_bytes())
    return sources.hexdigest()[:12]
