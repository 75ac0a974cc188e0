"""Words of upstream that our files and hooks use, where no type says whose they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from balance_tools.drift.symbols import imports, module_of

# The function of ours that takes the first name of several that the release has.
FIRST_OF = "first_of"
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{3,}")
_WORD = re.compile(r"[A-Za-z_]\w+")


def words_of(tree: Path) -> frozenset[str]:
    """Every word of every module of upstream's package."""
    words: set[str] = set()
    for path in tree.glob("vllm/**/*.py"):
        words.update(_WORD.findall(path.read_text(encoding="utf-8", errors="replace")))
    return frozenset(words)


@dataclass(frozen=True, order=True)
class Use:
    """One name of upstream at one place of ours; one of `names` must occur in it."""

    file: str
    """Of ours, or one that a hook stands in."""
    line: int
    """Of the use."""
    names: tuple[str, ...]
    """A word of any object, a method of ours that upstream calls, or what `first_of`
    chooses from.
    """


@dataclass(frozen=True)
class Ours:
    """What is checked: whole files, and lines of upstream's files (the hooks)."""

    files: tuple[str, ...]
    hooks: Mapping[str, frozenset[int]]

    def has(self, file: str, line: int) -> bool:
        """Whether a line is one of ours."""
        return file in self.files or line in self.hooks.get(file, ())


def inventory(root: Path, ours: Ours, upstream: frozenset[str]) -> tuple[Use, ...]:
    """Return every use of a word that upstream has, as the syntax shows it.

    `root` is a tree with upstream, the hooks and our files; `upstream` are the words of
    the same release without us.
    """
    mine = frozenset(map(module_of, ours.files))
    found: set[Use] = set()
    words: set[Use] = set()
    own_words: set[str] = set()
    for file in (*ours.files, *ours.hooks):
        tree = ast.parse((root / file).read_bytes(), file)
        known = imports(tree, module_of(file), file)
        theirs = {name for name, origin in known.items() if _is_upstream(origin, mine)}
        if file in ours.files:
            own_words |= set(_brought(tree))
        if theirs:
            words |= {w for w in _words(file, tree, known) if ours.has(file, w.line)}
        uses = (*_overrides(file, tree, theirs), *_choices(file, tree))
        found |= {use for use in uses if ours.has(file, use.line)}
    chosen = {(u.file, u.line, name) for u in found for name in u.names}
    for use in words:
        (word,) = use.names
        if word not in own_words and (use.file, use.line, word) not in chosen:
            found.add(use)
    return tuple(sorted(use for use in found if upstream & {*use.names}))


def _is_upstream(name: str, mine: frozenset[str]) -> bool:
    """Whether a dotted name is of upstream's package, and not of a file of ours."""
    own = any(name == one or name.startswith(one + ".") for one in mine)
    return name.split(".")[0] == "vllm" and not own


def _overrides(file: str, tree: ast.AST, theirs: set[str]) -> Iterator[Use]:
    """Yield what classes define whose base is a name of upstream."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        if theirs & {ast.unparse(base).partition(".")[0] for base in node.bases}:
            for name, line in _members(node):
                if not name.startswith("__"):
                    yield Use(file, line, (name,))


def _members(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.name, child.lineno
        elif isinstance(child, ast.Assign):
            for target in child.targets:
                if isinstance(target, ast.Name):
                    yield target.id, child.lineno


def _choices(file: str, tree: ast.AST) -> Iterator[Use]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == FIRST_OF:
            constants = (a for a in node.args[1:] if isinstance(a, ast.Constant))
            names = tuple(str(constant.value) for constant in constants)
            yield Use(file, node.lineno, names)


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
            yield Use(file, node.end_lineno or node.lineno, (node.attr,))
        elif isinstance(node, ast.Call) and not _of_library(node.func, known):
            for keyword in node.keywords:
                if keyword.arg:
                    yield Use(file, keyword.lineno, (keyword.arg,))
        elif (
            isinstance(node, ast.Constant)
            and node not in asked
            and isinstance(node.value, str)
            and _IDENTIFIER.fullmatch(node.value)
            and "_" in node.value
        ):
            yield Use(file, node.lineno, (node.value,))


def _of_library(node: ast.expr, known: Mapping[str, str]) -> bool:
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    origin = known.get(node.id, "vllm") if isinstance(node, ast.Name) else "vllm"
    return origin.split(".")[0] not in ("vllm", "vllm_balance", "")
