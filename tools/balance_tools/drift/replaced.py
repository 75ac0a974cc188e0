"""What vllm_ascend puts in place of vLLM's own code at run time.

Found by reading its tree: an assignment (or `setattr`) to a name that resolves into
vLLM replaces it. A hook in such a function may never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from balance_tools.drift.symbols import Modules, imports, module_of

UPSTREAM = "vllm"
PLUGIN = "vllm_ascend"


@dataclass(frozen=True)
class Replacement:
    """`symbol` of vLLM is replaced in `path`, line `line`, by `by`."""

    symbol: str
    path: str
    line: int
    by: str


def replacements(plugin: Modules) -> list[Replacement]:
    """Return every replacement that the plugin's text shows, in the order of files."""
    folder = plugin.tree / PLUGIN
    files = sorted(p.relative_to(plugin.tree).as_posix() for p in folder.rglob("*.py"))
    return [one for path in files for one in _in(plugin.parse(path), path)]


def _in(tree: ast.Module | None, path: str) -> Iterator[Replacement]:
    if tree is None:
        return
    names = imports(tree, module_of(path), path)
    for node in ast.walk(tree):
        for target, value in _assigned(node):
            symbol = _resolved(target, names)
            if symbol.startswith(f"{UPSTREAM}."):
                line = getattr(node, "lineno", 0)
                yield Replacement(symbol, path, line, ast.unparse(value))


def _assigned(node: ast.AST) -> list[tuple[ast.Attribute, ast.expr]]:
    """Return the attributes that a node sets, also by `setattr`, with their values."""
    match node:
        case ast.Assign(targets=targets, value=value):
            return [(t, value) for t in targets if isinstance(t, ast.Attribute)]
        case ast.Call(
            func=ast.Name(id="setattr"),
            args=[owner, ast.Constant(value=str(name)), value],
        ):
            return [(ast.Attribute(owner, name, ast.Load()), value)]
    return []


def _resolved(node: ast.expr, names: dict[str, str]) -> str:
    """Return the dotted name that an attribute stands for, "" if it is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([names.get(node.id, node.id), *parts])


def overlaps(
    symbols: list[str], found: list[Replacement]
) -> list[tuple[str, Replacement]]:
    """Return which of our symbols the plugin replaces, whole or in part."""
    return [
        (symbol, one)
        for symbol in symbols
        for one in found
        if _contains(symbol, one.symbol) or _contains(one.symbol, symbol)
    ]


def _contains(outer: str, inner: str) -> bool:
    return f"{inner}.".startswith(f"{outer}.")
