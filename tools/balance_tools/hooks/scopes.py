"""The functions and classes of a module by qualified name."""

from __future__ import annotations

import ast
from collections.abc import Iterable

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
