"""Text: lines, the syntax tree of a patched file, and tables in Markdown."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from pathlib import Path

from balance_tools.errors import ToolError


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ToolError(
            f"{path}: expected UTF-8, found something else ({error}); restore the file "
            "from git"
        ) from None


def split_lines(content: bytes) -> list[bytes]:
    """Split at LF only, line ends kept (bytes.splitlines also splits at CR)."""
    parts = content.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def parse_module(source: bytes, name: str) -> ast.Module:
    try:
        return ast.parse(source, name)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        raise ToolError(
            f"{name}, line {line}: not valid Python ({error}); correct the patch"
        ) from error


def added_lines(old: Sequence[bytes], new: Sequence[bytes]) -> frozenset[int]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    changed = (code for code in matcher.get_opcodes() if code[0] != "equal")
    return frozenset(n + 1 for *_, start, end in changed for n in range(start, end))


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    head = list(columns)
    body = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    return [body[0], "|---" * len(head) + "|", *body[1:]]
