# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A hash of the policies' sources, which results carry. Imports nothing of vLLM."""

import hashlib
from pathlib import Path

_POLICIES = Path(__file__).parents[2] / "v1" / "core" / "sched" / "balance"


def policies_fingerprint() -> str:
    """Twelve hexadecimal digits, the same for the same sources."""
    sources = hashlib.sha256()
    for path in sorted(_POLICIES.glob("*.py")):
        sources.update(path.read_bytes())
    return sources.hexdigest()[:12]
