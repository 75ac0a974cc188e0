"""Look up names in a tree of upstream: modules, classes with their bases, attributes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from balance_tools.rebase.symbols import MOST_REEXPORTS, Modules, imports

_WORD = re.compile(rb"[A-Za-z_]\w+")
_DEEPEST = 12  # bases of bases to look into


@dataclass
class Names:
    """What one tree defines; every file is parsed at most once."""

    modules: Modules
    _members: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word of every module."""
        found: set[bytes] = set()
        for path in sorted(self.modules.tree.glob("vllm/**/*.py")):
            found.update(_WORD.findall(path.read_bytes()))
        return frozenset(word.decode() for word in found)

    def has(self, dotted: str) -> bool:
        """Whether a module, or a name in a module or in a class or its bases, exists."""
        if self.modules.module_path(dotted):
            return True
        owner, _, name = dotted.rpartition(".")
        if not owner:
            return False
        return name in self.members(owner)

    def members(self, owner: str, follow: int = _DEEPEST) -> dict[str, int]:
        """Return name and line of all that a module or class defines, or inherits."""
        if not follow:
            return {}
        path = self.modules.module_path(owner)
        if path is not None:
            return self._own(path, "")
        found = self._class(owner)
        if found is None:
            return {}
        path, scope, node = found
        result: dict[str, int] = {}
        tree = self.modules.parse(path)
        assert tree is not None
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        known = imports(tree, module, path)
        for base in node.bases:
            text = ast.unparse(base).split("[")[0]
            first, _, rest = text.partition(".")
            origin = known.get(first, f"{module}.{first}")
            dotted = f"{origin}.{rest}" if rest else origin
            if dotted.split(".")[0] == "vllm" and dotted != owner:
                result |= self.members(dotted, follow - 1)
        return result | self._own(path, scope)

    def _class(
        self, dotted: str, follow: int = MOST_REEXPORTS
    ) -> tuple[str, str, ast.ClassDef] | None:
        found = self.modules.find(dotted)
        if found is not None and isinstance(found.node, ast.ClassDef):
            return found.path, found.scope, found.node
        return None

    def _own(self, path: str, scope: str) -> dict[str, int]:
        key = (path, scope)
        if key not in self._members:
            node = self._node(path, scope)
            # The first definition counts: a class is often assigned to again.
            found: dict[str, int] = {}
            for name, line in _defined(node, in_class=bool(scope)):
                found.setdefault(name, line)
            self._members[key] = found
        return self._members[key]

    def _node(self, path: str, scope: str) -> ast.AST:
        node: ast.AST | None = self.modules.parse(path)
        for part in scope.split(".") if scope else ():
            assert node is not None
            node = next(
                n
                for n in ast.walk(node)
                if isinstance(n, ast.ClassDef) and n.name == part
            )
        assert node is not None
        return node

    def elsewhere(self, owner: str) -> list[str]:
        """Return the dotted names of classes with the same last name anywhere."""
        name = owner.rpartition(".")[2]
        wanted = re.compile(rf"^class {re.escape(name)}\b", re.MULTILINE)
        tree = self.modules.tree
        return [
            f"{path.relative_to(tree).as_posix()[:-3].replace('/', '.')}.{name}"
            for path in sorted(tree.glob("vllm/**/*.py"))
            if wanted.search(path.read_text(encoding="utf-8", errors="replace"))
        ]


def _defined(node: ast.AST, in_class: bool) -> Iterator[tuple[str, int]]:
    """Yield what the body of a module or class defines, conditional parts included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name, child.lineno
            if in_class and not isinstance(child, ast.ClassDef):
                yield from _of_self(child)
        elif isinstance(child, ast.Import | ast.ImportFrom):
            for alias in child.names:
                yield alias.asname or alias.name.split(".")[0], child.lineno
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id, child.lineno
        elif not isinstance(child, ast.Lambda):
            yield from _defined(child, in_class)


def _of_self(function: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        ):
            yield node.attr, node.lineno
