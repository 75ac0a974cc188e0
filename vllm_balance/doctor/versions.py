"""The versions that belong together, by line, and the file of upstream that says so.

Where no other tree is named, the file is one of the sdist of vllm-ascend that the lock
of the line names. `docs/install.md` shows this table, and a test compares the pinned
line with its sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

POLICY = "docs/source/community/versioning_policy.md"
NOTES = "docs/source/user_guide/release_notes.md"
REQUIREMENTS = "requirements.txt"
UNPUBLISHED = "no vllm-ascend for it is published"


@dataclass(frozen=True)
class Fact:
    """A version, and who says so."""

    version: str
    """Empty where nothing says one."""
    says: str
    """A file, or why there is none."""


Stack = Mapping[str, Fact]
"""What it is of, to its version."""

LINES: Mapping[str, Stack] = {
    "0.23": {
        "Ascend HDK": Fact("25.5.1", NOTES),
        "CANN": Fact("9.1.0", POLICY),
        "NNAL": Fact("9.1.0", "docs/source/installation.md"),
        "torch": Fact("2.10.0", REQUIREMENTS),
        "torch-npu": Fact("2.10.0.post4", REQUIREMENTS),
        "triton-ascend": Fact("3.2.2", REQUIREMENTS),
        "Python": Fact(">= 3.10, < 3.13", POLICY),
        "chips": Fact("A2, A3, 310P, A5", "setup.py"),
        "image base": Fact("cann:9.1.0-910b-ubuntu22.04-py3.12", "Dockerfile"),
    },
    "0.30": {
        "Ascend HDK": Fact("26.0.RC1", NOTES),
        "CANN": Fact("9.2.0", POLICY),
        "NNAL": Fact("", "nothing; the image base has it"),
        "torch": Fact("2.10.0", REQUIREMENTS),
        "torch-npu": Fact("2.10.0.post4", REQUIREMENTS),
        "triton-ascend": Fact("3.2.2", REQUIREMENTS),
        "Python": Fact(">= 3.10, < 3.13", POLICY),
        "chips": Fact("A2, A3, 310P, A5", "`AscendDeviceType` in `vllm_ascend`"),
        "image base": Fact("9.2.0_20260930220649", "Dockerfile"),
    },
    "0.33": {
        **dict.fromkeys(
            ("Ascend HDK", "CANN", "NNAL", "torch", "torch-npu", "triton-ascend"),
            Fact("", UNPUBLISHED),
        ),
        "Python": Fact(">=3.11,<3.15", "vllm `pyproject.toml`"),
        **dict.fromkeys(("chips", "image base"), Fact("", UNPUBLISHED)),
    },
}


def order(version: str) -> tuple[int, ...]:
    """Sorts the vendor's versions: `24.1.rc3` < `24.1.0` < `25.5.1` < `26.0.RC1`."""
    parts = re.findall(r"rc|\d+", version.lower())
    numbers = [-1 if part == "rc" else int(part) for part in parts]
    return tuple([*numbers, *[0] * 6][:6])
