"""Look up dotted Python names in a source tree, without importing anything."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

from balance_tools.hooks.elements import find_scope

MOST_REEXPORTS = 5  # imports to follow before a name counts as not found


@dataclass
class Modules:
    tree: Path
    _parsed: dict[str, ast.Module] = field(default_factory=dict)

    def parse(self, path: str) -> ast.Module:
        """Return the syntax tree of a file that is there; empty if it is not Python."""
        if path not in self._parsed:
            try:
                parsed = ast.parse((self.tree / path).read_bytes(), path)
            except (SyntaxError, ValueError):
                parsed = ast.Module([], [])
            self._parsed[path] = parsed
        return self._parsed[path]

    def module_path(self, dotted: str) -> str | None:
        base = dotted.replace(".", "/")
        for path in (f"{base}.py", f"{base}/__init__.py"):
            if (self.tree / path).is_file():
                return path
        return None

    def find(self, symbol: str, follow: int = MOST_REEXPORTS) -> ast.AST | None:
        """Return the definition of `package.module.Class.method`.

        A colon may stand between module and name. Names that a module imports from
        another one are followed.
        """
        dotted = symbol.replace(":", ".").split(".")
        for length in range(len(dotted) - 1, 0, -1):
            path = self.module_path(".".join(dotted[:length]))
            if path is None:
                continue
            tree = self.parse(path)
            scope = ".".join(dotted[length:])
            node = find_scope(tree, scope) or _attribute(tree, scope)
            if node is not None:
                return node
            origin = imports(tree, ".".join(dotted[:length]), path).get(dotted[length])
            if origin and follow and origin != ".".join(dotted[: length + 1]):
                original = ".".join([origin, *dotted[length + 1 :]])
                return self.find(original, follow - 1)
            return None
        return None


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _attribute(tree: ast.AST, scope: str) -> ast.AST | None:
    """Return the statements that assign an attribute of a class or a module."""
    owner, _, name = scope.rpartition(".")
    parent = find_scope(tree, owner)
    if parent is None:
        return None
    names, statements = {name, f"self.{name}" if owner else name}, []
    for node in ast.walk(parent) if owner else ast.iter_child_nodes(parent):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if names & set(map(ast.unparse, targets)):
                statements.append(node)
    return ast.Module(body=list(statements), type_ignores=[]) if statements else None


def imports(tree: ast.AST, module: str, path: str) -> dict[str, str]:
    """Return what each imported name of a module stands for, as a dotted name.

    Imports inside functions count, too: a plugin often imports where it patches.
    """
    package = module.split(".")
    if not path.endswith("__init__.py"):
        package = package[:-1]
    origins: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                origins[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{origin}.{alias.name}"
    return origins
