"""Every message in docs/troubleshooting.md is one that the sources can still print."""

import argparse
import ast
import ctypes
import re
import subprocess
from pathlib import Path

import pip._internal.resolution.resolvelib.factory as pip_factory
import pytest

from balance_tools.paths import Paths

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
GAP = "…"
PIECE = 7
"""So many characters in a row come from one place; a shorter word may be a value."""
MOST_UNKNOWN = 2
"""Letters and digits."""


@pytest.fixture(scope="module")
def said():
    """What the sources above, pip and Python can say; a zero stands for a value."""
    root = PATHS.root
    files = [root / name for name in OF_UPSTREAM]
    for folder in ("vllm_balance", "tools", "vllm/v1/core/sched/balance"):
        files += (root / folder).rglob("*.py")
    files += [Path(module.__file__ or "") for module in STANDARD]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    constants = {
        ast.unparse(node.targets[0]): node.value.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    found = [text for tree in trees for text in texts(tree, constants)]
    found = [re.sub(r"%[a-z]|%\([a-z_]+\)s|\{\}", "\0", text) for text in found]
    with pytest.raises(OSError, match="libascendcl") as loader:
        ctypes.CDLL("libascendcl.so")
    found += [str(loader.value), (root / "docker" / "entrypoint.sh").read_text()]
    return "\0".join(found)


def texts(tree, constants):
    """Every string of a module; a constant of a module is put into its place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value)
                if isinstance(part, ast.Constant)
                else str(constants.get(ast.unparse(part.value), "\0"))
                for part in node.values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )


def unknown(message, said):
    """What of a message, its gaps left out, is in no piece that can be said."""
    left = [character.isalnum() for character in message]
    for start in range(len(message) - PIECE + 1):
        piece = message[start : start + PIECE]
        if GAP not in piece and piece in said:
            left[start : start + PIECE] = [False] * PIECE
    return "".join(c for c, is_left in zip(message, left, strict=True) if is_left)


def test_messages_were_found():
    assert len(MESSAGES) > 35


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_exists(said, message):
    assert len(unknown(message, said)) <= MOST_UNKNOWN
    words = max(message.split(GAP), key=len)  # one other word is noticed
    other = message.replace(words, f"{words[:-3]}zz{words[-3:]}")
    assert len(unknown(other, said)) > MOST_UNKNOWN
