"""The functions and classes of a module by qualified name, and how alike two are."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from balance_tools.hooks.elements import element

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def join_scope(scope: str, name: str) -> str:
    """Return the qualified name of a definition inside `scope`."""
    return f"{scope}.{name}" if scope else name


def find_scope(tree: ast.AST, scope: str) -> ast.AST | None:
    """Return the first definition with this qualified name, the tree itself for ""."""
    if not scope:
        return tree
    return next((node for name, node in definitions(tree) if name == scope), None)


def definitions(tree: ast.AST, prefix: str = "") -> Iterable[tuple[str, ast.AST]]:
    """Yield qualified name and node of every definition of a module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, DEFINITIONS):
            name = join_scope(prefix, node.name)
            yield name, node
            yield from definitions(node, name)
        else:
            yield from definitions(node, prefix)


def likeness(one: ast.AST, other: ast.AST) -> float:
    """Return how many of their statements two definitions share, 0 to 1."""
    mine, theirs = _statements(one), _statements(other)
    union = mine | theirs
    return len(mine & theirs) / len(union) if union else 0.0


def _statements(node: ast.AST) -> set[str]:
    found: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.stmt) and child is not node:
            part = element(child)
            if not part.is_trivial:
                found.add(part.text)
    return found
