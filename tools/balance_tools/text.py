"""Text: the lines and the syntax tree of a patched file, and tables in Markdown."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from balance_tools.errors import ToolError


def split_lines(content: bytes) -> list[bytes]:
    """Split at LF only, line ends kept (bytes.splitlines also splits at CR)."""
    parts = content.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def parse_module(source: bytes, name: str) -> ast.Module:
    """Parse a module.

    Raises:
        ToolError: the source is not valid Python.
    """
    try:
        return ast.parse(source, name)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        raise ToolError(
            f"{name}, line {line}: not valid Python ({error}); correct the patch"
        ) from error


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a table in Markdown."""
    head = list(columns)
    body = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    return [body[0], "|---" * len(head) + "|", *body[1:]]
