"""A module is read in one sitting, and a function fits on a screen."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE_LINES, FUNCTION_LINES = 350, 60


def modules() -> dict[str, str]:
    """The project's own Python, tests left out: path to text."""
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "*.py"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    names = [name for name in listing if not name.startswith("tests/")]
    return {name: (ROOT / name).read_text() for name in names}


def functions(text: str) -> list[tuple[str, int]]:
    """Name and length in lines of every function."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds)
    ]


def too_long(texts: dict[str, str]) -> list[str]:
    """What is longer than it may be."""
    found = []
    for name, text in texts.items():
        if (lines := len(text.splitlines())) > MODULE_LINES:
            found.append(f"{name}: {lines} lines")
        for function, lines in functions(text):
            if lines > FUNCTION_LINES:
                found.append(f"{name}: {function}: {lines} lines")
    return found


def test_nothing_is_too_long() -> None:
    texts = modules()
    assert {"setup.py", "tools/balance_tools/run.py"} <= texts.keys()
    assert too_long(texts) == []


def test_what_is_too_long_is_seen() -> None:
    body = "    x = 1\n"
    assert too_long({"a.py": "def f():\n" + body * 59}) == []
    assert too_long({"a.py": "def f():\n" + body * 60}) == ["a.py: f: 61 lines"]
    assert too_long({"b.py": "x = 1\n" * 351}) == ["b.py: 351 lines"]
