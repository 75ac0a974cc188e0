"""What vllm_ascend puts in place of vLLM's own code at run time, and what it copies.

Found by reading its tree: an assignment (or `setattr`) to a name that resolves into
vLLM replaces it; a subclass of one of vLLM's classes overrides its methods. Where the
replacement is mostly upstream's own text, it is a copy, and its drift from the upstream
that it replaces can be counted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from balance_tools.drift.symbols import (
    Change,
    Modules,
    change,
    imports,
    methods,
    module_of,
)
from balance_tools.hooks.scopes import definitions, likeness

UPSTREAM = "vllm"
PLUGIN = "vllm_ascend"
# A function that shares this much with upstream's, and is this long, counts as a copy.
COPY_LIKENESS = 0.5
COPY_LINES = 10


@dataclass(frozen=True)
class Replacement:
    """`symbol` of vLLM is replaced in `path`, line `line`, by `by` (a dotted name)."""

    symbol: str
    path: str
    line: int
    by: str


@dataclass(frozen=True)
class Copy:
    """A function of the plugin that is a changed copy of upstream's `symbol`."""

    symbol: str
    path: str
    scope: str
    line: int
    lines: int
    likeness: float
    drift: Change


def plugin_files(plugin: Modules) -> list[str]:
    """Return every module of the plugin, sorted."""
    folder = plugin.tree / PLUGIN
    files = [p.relative_to(plugin.tree).as_posix() for p in folder.rglob("*.py")]
    return sorted(files)


def replacements(plugin: Modules) -> list[Replacement]:
    """Return every replacement that the plugin's text shows, in the order of files."""
    found: list[Replacement] = []
    for path in plugin_files(plugin):
        tree = plugin.parse(path)
        if tree is not None:
            found += _replacements_in(tree, path)
    return found


def _replacements_in(tree: ast.Module, path: str) -> Iterator[Replacement]:
    module = module_of(path)
    names = imports(tree, module, path)
    own = {name for name, _ in definitions(tree) if "." not in name}
    for node in ast.walk(tree):
        pairs: list[tuple[ast.AST, ast.AST]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.Call):
            pairs = _set_by_call(node)
        for target, value in pairs:
            if not isinstance(target, ast.Attribute):
                continue  # a name of the plugin's own module
            symbol = _resolved(target, names)
            if symbol.startswith(f"{UPSTREAM}."):
                by = _resolved(value, names) or ast.unparse(value)
                by = f"{module}.{by}" if by.split(".")[0] in own else by
                yield Replacement(symbol, path, getattr(node, "lineno", 0), by)


def _set_by_call(node: ast.Call) -> list[tuple[ast.AST, ast.AST]]:
    """Return target and value of `setattr(owner, "name", value)`."""
    is_setattr = isinstance(node.func, ast.Name) and node.func.id == "setattr"
    if not is_setattr or len(node.args) != 3:
        return []
    owner, name, value = node.args
    if not isinstance(name, ast.Constant):
        return []
    return [(ast.Attribute(owner, str(name.value), ast.Load()), value)]


def _resolved(node: ast.AST, names: dict[str, str]) -> str:
    """Return the dotted name that an attribute stands for, "" if it is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or (not parts and node.id not in names):
        return node.id if isinstance(node, ast.Name) and not parts else ""
    return ".".join([names.get(node.id, node.id), *parts])


def copies(plugin: Modules, upstream: Modules, found: list[Replacement]) -> list[Copy]:
    """Return the functions of the plugin that are copies, most drifted first."""
    seen: dict[tuple[str, str, str], Copy] = {}
    for symbol, path, scope, node in [
        *_replacing(plugin, found),
        *_overriding(plugin),
    ]:
        for name, theirs, mine in _same_functions(upstream, symbol, node):
            copy = _copy(name, path, f"{scope}{mine[0]}", theirs, mine[1])
            if copy is not None:
                seen.setdefault((copy.symbol, copy.path, copy.scope), copy)
    return sorted(seen.values(), key=lambda c: (-c.drift.lines, c.symbol, c.path))


_Own = tuple[str, str, str, ast.AST]


def _replacing(plugin: Modules, found: list[Replacement]) -> Iterator[_Own]:
    for one in found:
        symbol = plugin.find(one.by) if one.by.startswith(f"{PLUGIN}.") else None
        if symbol is not None:
            yield one.symbol, symbol.path, symbol.scope, symbol.node


def _overriding(plugin: Modules) -> Iterator[_Own]:
    for path in plugin_files(plugin):
        tree = plugin.parse(path)
        if tree is None:
            continue
        names = imports(tree, module_of(path), path)
        for scope, node in definitions(tree):
            for base in node.bases if isinstance(node, ast.ClassDef) else ():
                symbol = _resolved(base, names)
                if symbol.startswith(f"{UPSTREAM}."):
                    yield symbol, path, scope, node


def _same_functions(
    upstream: Modules, symbol: str, node: ast.AST
) -> Iterator[tuple[str, ast.AST, tuple[str, ast.AST]]]:
    """Yield upstream's name and node with the plugin's name suffix and node."""
    theirs = upstream.find(symbol)
    if theirs is None:
        return
    if not isinstance(node, ast.ClassDef):
        if not isinstance(theirs.node, ast.ClassDef):
            yield symbol, theirs.node, ("", node)
        return
    inherited = methods(theirs.node)
    for name, method in methods(node).items():
        if name in inherited:
            yield f"{symbol}.{name}", inherited[name], (f".{name}", method)


def _copy(
    symbol: str, path: str, scope: str, theirs: ast.AST, mine: ast.AST
) -> Copy | None:
    first = int(getattr(mine, "lineno", 0))
    lines = int(getattr(mine, "end_lineno", 0)) - first + 1
    share = likeness(theirs, mine) if lines >= COPY_LINES else 0.0
    if share < COPY_LIKENESS:
        return None
    return Copy(symbol, path, scope, first, lines, share, change(theirs, mine))


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
