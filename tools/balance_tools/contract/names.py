"""Look up names in a tree of upstream: modules, classes and their bases, attributes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from balance_tools.drift.symbols import Modules, imports, module_of

_WORD = re.compile(r"[A-Za-z_]\w+")
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


@dataclass
class Names:
    """What one tree defines; every file is parsed at most once."""

    modules: Modules
    _members: dict[str, frozenset[str]] = field(default_factory=dict)

    @cached_property
    def _texts(self) -> tuple[frozenset[str], dict[str, list[str]]]:
        """Every word, and the modules that define a class of each name."""
        words: set[str] = set()
        classes: dict[str, list[str]] = {}
        tree = self.modules.tree
        for path in sorted(tree.glob("vllm/**/*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            words.update(_WORD.findall(text))
            module = module_of(path.relative_to(tree).as_posix())
            for name in _CLASS.findall(text):
                classes.setdefault(name, []).append(module)
        return frozenset(words), classes

    @property
    def words(self) -> frozenset[str]:
        """Every word of every module."""
        return self._texts[0]

    def has(self, dotted: str) -> bool:
        """Whether there is such a module, or name in a module, class or base of it."""
        if self.modules.module_path(dotted):
            return True
        owner, _, name = dotted.rpartition(".")
        return bool(owner) and name in self.members(owner)

    def members(self, owner: str) -> frozenset[str]:
        """Return the names that a module or class defines, imports or inherits."""
        if owner not in self._members:
            self._members[owner] = frozenset()  # for who leads back to itself
            self._members[owner] = frozenset(self._read(owner))
        return self._members[owner]

    def _read(self, owner: str) -> Iterator[str]:
        path = self.modules.module_path(owner)
        if path is not None:
            yield from _defined(self.modules.parse(path), in_class=False)
            return
        found = self.modules.find(owner)
        if found is None or not isinstance(found.node, ast.ClassDef):
            return
        yield from _defined(found.node, in_class=True)
        module = module_of(found.path)
        known = imports(self.modules.parse(found.path), module, found.path)
        for base in found.node.bases:
            first, _, rest = ast.unparse(base).split("[")[0].partition(".")
            origin = known.get(first, f"{module}.{first}")
            dotted = f"{origin}.{rest}" if rest else origin
            if dotted.split(".")[0] == "vllm":
                yield from self.members(dotted)

    def elsewhere(self, owner: str) -> list[str]:
        """Return the dotted names of the classes with the same last name."""
        name = owner.rpartition(".")[2]
        return [f"{module}.{name}" for module in self._texts[1].get(name, ())]


def _defined(node: ast.AST, in_class: bool) -> Iterator[str]:
    """Yield what the body of a module or class defines, conditional parts included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
            if in_class and not isinstance(child, ast.ClassDef):
                yield from _of_self(child)
        elif isinstance(child, ast.Import | ast.ImportFrom):
            for alias in child.names:
                yield alias.asname or alias.name.split(".")[0]
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif not isinstance(child, ast.Lambda):
            yield from _defined(child, in_class)


def _of_self(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        ):
            yield node.attr
