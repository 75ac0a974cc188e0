"""Every message that a source file can print, read from its syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

GAP = "…"
LEAST_LETTERS = 12
"""A template with fewer letters of its own says nothing."""


@dataclass(frozen=True)
class Template:
    """One string literal, split where a value is put in."""

    parts: tuple[str, ...]

    @property
    def letters(self) -> int:
        """Letters that do not depend on a value."""
        return sum(map(str.isalpha, "".join(self.parts)))

    def spans(self, message: str) -> Iterator[tuple[int, int]]:
        """The places of a message that come from here, all of them or none."""
        if all(part in message for part in self.parts):
            groups = (f"({re.escape(part)})" for part in self.parts)
            if found := re.search(".*?".join(groups), message):
                yield from (found.span(group + 1) for group in range(len(self.parts)))


def read_templates(files: Iterable[Path]) -> list[Template]:
    """The templates of Python files; a constant of a module is put into its place."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    constants = {
        target.id: node.value.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }
    found = {
        Template(tuple(re.split(r"\0|%[a-z]|%\([a-z_]+\)s|\{\}", text)))
        for tree in trees
        for node in ast.walk(tree)
        if (text := _text(node, constants))
    }
    return [template for template in found if template.letters >= LEAST_LETTERS]


def _text(node: ast.AST, constants: dict[str, str]) -> str:
    """A literal with a zero where a value is put in; empty for any other node."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return ""
    return "".join(
        str(part.value)
        if isinstance(part, ast.Constant)
        else constants.get(ast.unparse(part.value), "\0")
        for part in node.values
        if isinstance(part, ast.Constant | ast.FormattedValue)
    )


def uncovered(message: str, templates: Iterable[Template]) -> str:
    """What of a message no template says; a gap in it stands for anything.

    Either a whole template is in the message, with whatever values, or a piece between
    two gaps is in a template.
    """
    open_ = [character.isalnum() for character in message]
    pieces = [(m.start(), m[0]) for m in re.finditer(f"[^{GAP}]+", message)]
    for template in templates:
        spans = list(template.spans(message))
        for start, piece in pieces:
            words = piece.strip()
            if len(words) >= LEAST_LETTERS and any(
                words in part for part in template.parts
            ):
                spans.append((start, start + len(piece)))
        for start, end in spans:
            open_[start:end] = [False] * (end - start)
    return "".join(c for c, left in zip(message, open_, strict=True) if left)
