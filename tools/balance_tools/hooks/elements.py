"""Python syntax reduced to what identifies a statement: text, loose key, names.

Everything here ignores formatting, comments and line numbers. A compound statement is
identified by its header; the statements in its body are identified separately.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
EXACT, SIMILAR, DIFFERENT = 2, 1, 0

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_HEADERLESS = ("Try", "TryStar")
_TRIVIAL = ("Pass", "Break", "Continue")
_ENOUGH_IN_COMMON = 0.5  # share of their statements that two blocks must have
_KNOWN: WeakKeyDictionary[ast.AST, Element] = WeakKeyDictionary()


@dataclass(frozen=True)
class Element:
    kind: str
    """Name of the syntax class, such as `Assign`."""
    text: str
    """Normalised syntax; of a compound statement, of its header only."""
    key: str
    """A short name of the node ("self.x = f"), "" if it has none."""
    inner: frozenset[str]
    """Keys of all statements in the bodies of a compound statement."""

    @property
    def is_trivial(self) -> bool:
        """Whether the node says nothing about where it stands (`break`, `pass`)."""
        return self.kind in _TRIVIAL or self.text == "return"


def similarity(a: Element, b: Element) -> int:
    """Compare two elements: EXACT, SIMILAR (same key, or common body), DIFFERENT."""
    if a.kind != b.kind:
        return DIFFERENT
    if a.text == b.text and a.kind not in _HEADERLESS:
        return EXACT
    if a.key and a.key == b.key:
        return SIMILAR
    total = len(a.inner) + len(b.inner)
    if total and 2 * len(a.inner & b.inner) / total >= _ENOUGH_IN_COMMON:
        same = a.inner == b.inner and a.text == b.text
        return EXACT if same else SIMILAR
    return DIFFERENT


def element(node: ast.AST) -> Element:
    if (cached := _KNOWN.get(node)) is None:
        cached = _KNOWN[node] = _element(node)
    return cached


def _element(node: ast.AST) -> Element:
    kind = type(node).__name__
    inner: set[str] = set()
    for field in _BLOCKS:
        for child in map(element, _block(node, field)):
            inner |= child.inner
            if not child.is_trivial:
                inner.add(child.key or child.text)
    return Element(kind, header(node), _key(node), frozenset(inner))


def header(node: ast.AST) -> str:
    """Return the node's source in one normal form, without the bodies of a block."""
    if isinstance(node, ast.expr):
        return ast.unparse(node)
    if isinstance(node, ast.keyword):
        return f"{node.arg or '**'}={ast.unparse(node.value)}"
    if isinstance(node, ast.alias):
        return f"{node.name} as {node.asname}" if node.asname else node.name
    if not isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
        return ast.dump(node)
    if type(node).__name__ in _HEADERLESS:
        return "try"
    if not any(_block(node, field) for field in _BLOCKS):
        return ast.unparse(node)
    bare = copy.copy(node)
    for field in _BLOCKS:
        if _block(node, field):
            setattr(bare, field, [ast.Pass()] if field in ("body", "cases") else [])
    if isinstance(node, ast.match_case | ast.Match):
        return ast.dump(bare)
    return ast.unparse(bare).rsplit("\n", 1)[0]


def _block(node: ast.AST, field: str) -> list[ast.AST]:
    value = getattr(node, field, None)
    return value if isinstance(value, list) else []


def _key(node: ast.AST) -> str:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return f"{type(node).__name__} {node.name}"
        case ast.Assign():
            targets = " = ".join(ast.unparse(target) for target in node.targets)
            return f"{targets} = {_callee(node.value)}"
        case ast.Return(value=ast.Call() as call):
            return f"return {_callee(call)}"
        case ast.AnnAssign() | ast.AugAssign():
            return f"{ast.unparse(node.target)} {type(node).__name__}"
        case ast.Expr(value=ast.Call() as call):
            return _callee(call)
        case ast.ImportFrom():
            return f"from {'.' * node.level}{node.module}"
        case ast.For() | ast.AsyncFor():
            return f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
        case ast.Call():
            return _callee(node)
        case ast.keyword():
            return f"{node.arg}="
        case ast.arg():
            return node.arg
        case ast.alias():
            return node.asname or node.name
        case _:
            return ""


def _callee(value: ast.AST) -> str:
    """`f` of `f(...)`, with the first argument if that is a constant string."""
    if not isinstance(value, ast.Call):
        return ""
    name = ast.unparse(value.func)
    first = value.args[0] if value.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return f"{name}({first.value!r})"
    return f"{name}()"


def defined_names(nodes: tuple[ast.AST, ...]) -> frozenset[str]:
    names: set[str] = set()
    for node in _walk(nodes):
        match node:
            case ast.Name(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                names.add(ast.unparse(node))
            case ast.Import() | ast.ImportFrom():
                names.update(alias.asname or alias.name for alias in node.names)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
    return frozenset(names)


def used_names(nodes: tuple[ast.AST, ...]) -> frozenset[str]:
    """Return the dotted names that the nodes read, `self` excepted."""
    names: set[str] = set()
    for node in _walk(nodes):
        match node:
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                names.add(ast.unparse(node))
    return frozenset(names - {"self"})


def _walk(nodes: tuple[ast.AST, ...]) -> Iterator[ast.AST]:
    for node in nodes:
        yield from ast.walk(node)


def join_scope(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def find_scope(tree: ast.AST, scope: str) -> ast.AST | None:
    if not scope:
        return tree
    return next((node for name, node in definitions(tree) if name == scope), None)


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, DEFINITIONS):
            name = join_scope(prefix, node.name)
            yield name, node
            yield from definitions(node, name)
        else:
            yield from definitions(node, prefix)
