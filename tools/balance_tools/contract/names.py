"""Names of upstream: what a tree has, and what our files and hooks use of the pin's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from balance_tools.drift.symbols import Modules, imports, module_of

IMPORT, ATTRIBUTE, OVERRIDE = "import", "attribute", "override"
EITHER, WORD = "either", "word"
# The function of ours that takes the first name of several that the release has.
FIRST_OF = "first_of"
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{3,}")
_WORD = re.compile(r"[A-Za-z_]\w+")


@dataclass
class Names:
    """What one tree defines; every file is parsed at most once."""

    modules: Modules
    _members: dict[str, frozenset[str]] = field(default_factory=dict)

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word of every module."""
        words: set[str] = set()
        for path in self.modules.tree.glob("vllm/**/*.py"):
            text = path.read_text(encoding="utf-8", errors="replace")
            words.update(_WORD.findall(text))
        return frozenset(words)

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


@dataclass(frozen=True, order=True)
class Use:
    """One name of upstream at one place of ours."""

    file: str
    """Of ours, or one that a hook stands in."""
    line: int
    """Of the use."""
    kind: str
    """IMPORT and ATTRIBUTE: `names` is one dotted name; OVERRIDE: a method of ours that
    upstream calls; EITHER: words of which one must occur; WORD: of an object that the
    syntax does not name, which must occur in upstream.
    """
    names: tuple[str, ...]


@dataclass(frozen=True)
class Ours:
    """What is checked: whole files, and lines of upstream's files (the hooks)."""

    files: tuple[str, ...]
    hooks: Mapping[str, frozenset[int]]

    def has(self, file: str, line: int) -> bool:
        """Whether a line is one of ours."""
        return file in self.files or line in self.hooks.get(file, ())


def inventory(root: Path, ours: Ours, upstream: Names) -> tuple[Use, ...]:
    """Return every use of a name that upstream defines, as the syntax shows it.

    `root` is a tree with upstream, the hooks and our files; `upstream` are the names of
    the same release without us.
    """
    found: set[Use] = set()
    mine = frozenset(map(module_of, ours.files))
    own_words: set[str] = set()
    words: set[Use] = set()
    for file in (*ours.files, *ours.hooks):
        tree = ast.parse((root / file).read_bytes(), file)
        known = imports(tree, module_of(file), file)
        reader = _Reader(file, ours, known, upstream, mine)
        found |= {use for use in reader.uses(tree) if ours.has(file, use.line)}
        if file in ours.files:
            own_words |= set(_brought(tree))
        if any(reader.is_upstream(origin) for origin in known.values()):
            seen = _words(file, tree, known)
            words |= {use for use in seen if ours.has(file, use.line)}
    named = {
        (use.file, use.line, name.rpartition(".")[2])
        for use in found
        for name in use.names
    }
    for use in words:
        (word,) = use.names
        known_here = word in own_words or (use.file, use.line, word) in named
        if word in upstream.words and not known_here:
            found.add(use)
    return tuple(sorted(found))


@dataclass(frozen=True)
class _Reader:
    """Reads the uses that the syntax alone shows."""

    file: str
    ours: Ours
    known: Mapping[str, str]
    upstream: Names
    mine: frozenset[str]

    def uses(self, tree: ast.AST) -> Iterator[Use]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                yield from self._imported(node)
            elif isinstance(node, ast.Attribute):
                name = self._dotted(node)
                if name and self.is_upstream(name) and self.upstream.has(name):
                    yield Use(self.file, node.lineno, ATTRIBUTE, (name,))
            elif isinstance(node, ast.ClassDef) and self.file in self.ours.files:
                yield from self._overrides(node)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == FIRST_OF:
                constants = (a for a in node.args[1:] if isinstance(a, ast.Constant))
                names = tuple(str(constant.value) for constant in constants)
                yield Use(self.file, node.lineno, EITHER, names)

    def is_upstream(self, name: str) -> bool:
        """Whether a dotted name is of upstream's package, and not of a file of ours."""
        own = any(name == one or name.startswith(one + ".") for one in self.mine)
        return name.split(".")[0] == "vllm" and not own

    def _imported(self, node: ast.ImportFrom | ast.Import) -> Iterator[Use]:
        for alias in node.names:
            if isinstance(node, ast.Import):
                name = alias.name
            elif node.level:
                continue
            else:
                name = f"{node.module}.{alias.name}"
            if self.is_upstream(name) and self.upstream.has(name):
                yield Use(self.file, alias.lineno, IMPORT, (name,))

    def _dotted(self, node: ast.expr) -> str | None:
        """Return the dotted name of `module.name`, for an imported module or class."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            before = self._dotted(node.value)
            return f"{before}.{node.attr}" if before else None
        return None

    def _overrides(self, node: ast.ClassDef) -> Iterator[Use]:
        for base in map(self._dotted, node.bases):
            if base is None or not self.is_upstream(base):
                continue
            for name, line in _members(node):
                if not name.startswith("__") and self.upstream.has(f"{base}.{name}"):
                    yield Use(self.file, line, OVERRIDE, (f"{base}.{name}",))


def _members(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.name, child.lineno
        elif isinstance(child, ast.Assign):
            for target in child.targets:
                if isinstance(target, ast.Name):
                    yield target.id, child.lineno


def _brought(tree: ast.AST) -> Iterator[str]:
    """Yield every attribute, function and class that a module of ours brings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            fields = (n.target for n in node.body if isinstance(n, ast.AnnAssign))
            yield from (name.id for name in fields if isinstance(name, ast.Name))
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) == "self"
        ):
            yield node.attr


def _words(file: str, tree: ast.AST, known: Mapping[str, str]) -> Iterator[Use]:
    """Yield attributes, keyword arguments and names in strings, except of libraries.

    What `hasattr` asks for need not be there.
    """
    asked: set[ast.expr] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hasattr":
            asked.update(node.args)
        if isinstance(node, ast.Attribute) and not _of_library(node, known):
            yield Use(file, node.end_lineno or node.lineno, WORD, (node.attr,))
        elif isinstance(node, ast.Call) and not _of_library(node.func, known):
            for keyword in node.keywords:
                if keyword.arg:
                    yield Use(file, keyword.lineno, WORD, (keyword.arg,))
        elif (
            isinstance(node, ast.Constant)
            and node not in asked
            and isinstance(node.value, str)
            and _IDENTIFIER.fullmatch(node.value)
            and "_" in node.value
        ):
            yield Use(file, node.lineno, WORD, (node.value,))


def _of_library(node: ast.expr, known: Mapping[str, str]) -> bool:
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    origin = known.get(node.id, "vllm") if isinstance(node, ast.Name) else "vllm"
    return origin.split(".")[0] not in ("vllm", "vllm_balance", "")
