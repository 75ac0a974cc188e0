# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A hash of what a simulation decides with, which results carry. No import of vLLM.

The simulator is not in it: results of real servers carry the hash, too, and a test
holds the simulator's figures fast.
"""

import hashlib
from pathlib import Path

_BALANCE = Path(__file__).parents[2] / "v1" / "core" / "sched" / "balance"


def sources() -> list[Path]:
    """The files of balance scheduling that a simulation imports."""
    policies = sorted((_BALANCE / "policies").glob("*.py"))
    others = "context_dispatch.py", "dispatch.py", "prefix_memory.py", "measure/ages.py"
    return [*policies, *(_BALANCE / name for name in others)]


def policies_fingerprint() -> str:
    """Twelve hexadecimal digits, the same for the same sources."""
    contents = b"".join(map(Path.read_bytes, sources()))
    return hashlib.sha256(contents).hexdigest()[:12]
