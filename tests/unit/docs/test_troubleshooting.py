"""Every message in docs/troubleshooting.md is one that the sources can still print."""

from __future__ import annotations

import argparse
import ctypes
import re
import subprocess
from pathlib import Path

import pip._internal.resolution.resolvelib.factory as pip_factory
import pytest

from balance_tools.paths import Paths
from messages import GAP, Template, read_templates, uncovered

PATHS = Paths.find()
PAGE = (PATHS.root / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PARTS = [
    part
    for cell in re.findall(r"^\| (.+?) \| ", PAGE, re.MULTILINE)
    for part in cell.split("<br>")
]
MESSAGES = [m[2].strip() for p in PARTS if (m := re.fullmatch(r"(``?)(.+)\1", p))]
"""What is all of a cell, or of a line of one, and code."""
OF_UPSTREAM = (
    "vllm/distributed/device_communicators/shm_broadcast.py",
    "vllm/envs.py",
    "vllm/platforms/__init__.py",
    "vllm/utils/cpu_resource_utils.py",
    "vllm/v1/engine/core_client.py",
    "vllm/v1/engine/exceptions.py",
    "vllm/v1/engine/utils.py",
    "vllm_ascend/platform.py",
    "vllm_ascend/utils.py",
)
STANDARD = (argparse, subprocess, pip_factory)
MOST_UNKNOWN = 12
"""Letters and digits that may be a value, such as the name of a file."""


@pytest.fixture(scope="module")
def templates() -> list[Template]:
    """What we, the image, the upstream files named above, pip and Python can say."""
    root = PATHS.root
    files = [root / name for name in OF_UPSTREAM]
    for folder in ("vllm_balance", "tools", "vllm/v1/core/sched/balance"):
        files += (root / folder).rglob("*.py")
    files += [Path(module.__file__ or "") for module in STANDARD]
    with pytest.raises(OSError, match="libascendcl") as loader:
        ctypes.CDLL("libascendcl.so")
    others = [str(loader.value), (root / "docker" / "entrypoint.sh").read_text()]
    return [*read_templates(files), *(Template((text,)) for text in others)]


def test_messages_were_found() -> None:
    assert len(MESSAGES) > 35


def test_symptoms_have_ten_rows_with_a_command_and_a_repair() -> None:
    for symptom in ("does not start", "hangs", "is slow"):
        section = PAGE.split(f"## When it {symptom}")[1].split("\n## ")[0]
        rows = [row.split(" | ") for row in section.splitlines() if row[:2] == "| "][1:]
        assert len(rows) >= 10
        assert all(tells.strip() and repair.strip() for _, tells, repair, *_ in rows)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_exists(templates: list[Template], message: str) -> None:
    unknown = uncovered(message, templates)
    assert len(unknown) <= MOST_UNKNOWN, f"nothing says {unknown!r}"
    words = max(message.split(GAP), key=len)  # one other word is noticed
    other = message.replace(words, f"{words[:-3]}zz{words[-3:]}")
    assert len(uncovered(other, templates)) > MOST_UNKNOWN
