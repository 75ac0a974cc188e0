"""Where upstream moved a function or class that a hook belongs to."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from balance_tools.hooks.scopes import definitions, find_scope, likeness

# Share of the statements that a function must keep to be taken for the same one.
LIKELY = 0.5


@dataclass(frozen=True)
class Candidate:
    """A function or class that may be the moved one; `likeness` is 0 to 1."""

    path: str
    scope: str
    likeness: float

    def __str__(self) -> str:
        return f"{self.scope} in {self.path} ({self.likeness:.0%} alike)"


def find_moved(
    scope: str,
    old_path: str,
    old_tree: ast.AST,
    paths: Iterable[str],
    read: Callable[[str], bytes | None],
) -> Candidate | None:
    """Find the definition in new upstream that is most like `scope` of the old module.

    The same name in any file counts, and any name in the old file or in one with the
    same file name; at least LIKELY of the statements must be shared.

    Args:
        scope: Qualified name in the old module.
        old_path: Path of the old module.
        old_tree: The old module.
        paths: Every Python file of new upstream.
        read: Returns the content of one of them.
    """
    wanted = find_scope(old_tree, scope)
    if wanted is None or not scope:
        return None
    name = scope.rpartition(".")[2]
    file_name = old_path.rpartition("/")[2]
    best: Candidate | None = None
    for path in paths:
        source = read(path)
        near = path == old_path or path.endswith(f"/{file_name}")
        if source is None or not (near or _mentions(source, name)):
            continue
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue  # a file that upstream's own Python refuses holds no candidate
        for found, node in definitions(tree):
            same_name = found.rpartition(".")[2] == name
            if type(node) is not type(wanted) or not (near or same_name):
                continue
            share = likeness(wanted, node)
            if share >= LIKELY and (best is None or share > best.likeness):
                best = Candidate(path, found, share)
    return best


def _mentions(source: bytes, name: str) -> bool:
    return f"def {name}(".encode() in source or f"class {name}".encode() in source
