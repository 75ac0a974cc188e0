"""The vendor's versions for a release of vLLM, from the table of docs/compatibility.md.

A test compares both with upstream's files, and names them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

RELEASES: Mapping[str, Mapping[str, str]] = {
    "0.23": {"Ascend HDK": "25.5.1", "CANN": "9.1.0", "NNAL": "9.1.0"},
    "0.30": {"Ascend HDK": "26.0.RC1", "CANN": "9.2.0"},  # NNAL: in the image base
    "0.33": {},  # no vllm-ascend for it is published
}
UNKNOWN = "a version that upstream has published for this line"


def order(version: str) -> tuple[int, ...]:
    """Sorts the vendor's versions: `24.1.rc3` < `24.1.0` < `25.5.1` < `26.0.RC1`."""
    parts = re.findall(r"rc|\d+", version.lower())
    numbers = [-1 if part == "rc" else int(part) for part in parts]
    return tuple([*numbers, *[0] * 6][:6])
