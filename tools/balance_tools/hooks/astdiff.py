"""Where two versions of a module differ, in terms of its syntax tree.

A difference is a gap in a list of nodes (statements of a block, arguments of a call,
names of an import): what was taken out, what was put in, and between which neighbours.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from balance_tools.hooks.elements import (
    DEFINITIONS,
    DIFFERENT,
    Element,
    element,
    join_scope,
    similarity,
)

Nodes = tuple[ast.AST, ...]


@dataclass(frozen=True)
class Level:
    """One level on the way from a scope down to a list: which field of which node."""

    owner: Element
    field: str


@dataclass(frozen=True)
class Gap:
    """A place in a list of nodes: after `before`, before `after`.

    `width` nodes from `index` on lie inside the gap, taken out or put in by a patch. A
    field that holds one node is a list of at most one.
    """

    scope: str
    path: tuple[Level, ...]
    siblings: Nodes
    index: int
    width: int = 0
    before: ast.AST | None = field(init=False, compare=False)
    """The node just before the gap, None at the start of the list."""
    after: ast.AST | None = field(init=False, compare=False)
    """The node just after the gap, None at the end of the list."""
    inside: Nodes = field(init=False, compare=False)

    def __post_init__(self) -> None:
        start, end, nodes = self.index, self.index + self.width, self.siblings
        derived = {
            "before": nodes[start - 1] if start else None,
            "after": nodes[end] if end < len(nodes) else None,
            "inside": nodes[start:end],
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Difference:
    """What changed at one gap: the nodes inside `old` became those inside `new`."""

    old: Gap
    new: Gap


@dataclass(frozen=True)
class Cursor:
    """A node on the way down, with the scope and path that lead to its fields.

    `head` is the `if` that starts the chain if the node is an `elif` of it. A chain
    counts as one level however many branches upstream gives it: each branch belongs to
    its own condition, `else` to the head.
    """

    scope: str
    path: tuple[Level, ...]
    node: ast.AST
    head: ast.AST | None = None

    def field(self, name: str) -> tuple[str, tuple[Level, ...]]:
        if isinstance(self.node, DEFINITIONS) and name == "body":
            return join_scope(self.scope, self.node.name), ()
        if isinstance(self.node, ast.Module):
            return "", ()
        owner = self.node
        if name == "orelse":
            owner = self.head or self.node
            name = "elif" if self._has_elif() else name
        return self.scope, (*self.path, Level(element(owner), name))

    def child(self, name: str, node: ast.AST) -> Cursor:
        if name == "orelse" and self._has_elif():
            return Cursor(self.scope, self.path, node, self.head or self.node)
        return Cursor(*self.field(name), node)

    def _has_elif(self) -> bool:
        if not isinstance(self.node, ast.If):
            return False
        return len(self.node.orelse) == 1 and isinstance(self.node.orelse[0], ast.If)


def gaps(tree: ast.AST, scope: str) -> Iterator[Gap]:
    """Yield every gap of every list that belongs to `scope`, outer lists first."""
    yield from _gaps(Cursor("", (), tree), scope)


def _gaps(cursor: Cursor, target: str) -> Iterator[Gap]:
    for name, value in ast.iter_fields(cursor.node):
        scope, path = cursor.field(name)
        if scope and scope != target and not target.startswith(f"{scope}."):
            continue
        nodes = _nodes(value if isinstance(value, list) else [value])
        if scope == target and (nodes or isinstance(value, list) or value is None):
            for index in range(len(nodes) + 1):
                yield Gap(scope, path, nodes, index)
        for child in nodes:
            yield from _gaps(cursor.child(name, child), target)


def ast_differences(old: ast.AST, new: ast.AST) -> list[Difference]:
    return list(_compare(Cursor("", (), old), Cursor("", (), new)))


def _compare(old: Cursor, new: Cursor) -> Iterator[Difference]:
    for name in old.node._fields:
        before, after = getattr(old.node, name, None), getattr(new.node, name, None)
        if isinstance(before, list) and isinstance(after, list):
            yield from _compare_lists(old, new, name, _nodes(before), _nodes(after))
        elif _nodes([before, after]):
            yield from _compare_lists(old, new, name, _nodes([before]), _nodes([after]))


def _nodes(values: Sequence[object]) -> Nodes:
    return tuple(
        value
        for value in values
        if isinstance(value, ast.AST) and not isinstance(value, ast.expr_context)
    )


def _compare_lists(
    parent: Cursor, new_parent: Cursor, name: str, old: Nodes, new: Nodes
) -> Iterator[Difference]:
    matcher = SequenceMatcher(
        None, [ast.dump(n) for n in old], [ast.dump(n) for n in new], autojunk=False
    )
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        if tag == "equal":
            continue
        # Pair what is one node with changes inside; the rest is put in or taken out.
        pairs = _pairs(old, new, (i, i_end), (j, j_end))
        for at_old, at_new in [*pairs, (i_end, j_end)]:
            if at_old > i or at_new > j:
                yield Difference(
                    Gap(*parent.field(name), old, i, at_old - i),
                    Gap(*new_parent.field(name), new, j, at_new - j),
                )
            if at_old < i_end and at_new < j_end:
                yield from _compare(
                    parent.child(name, old[at_old]), new_parent.child(name, new[at_new])
                )
            i, j = at_old + 1, at_new + 1


def _pairs(
    old: Nodes, new: Nodes, old_range: tuple[int, int], new_range: tuple[int, int]
) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    start = new_range[0]
    for i in range(*old_range):
        for j in range(start, new_range[1]):
            if _same_node(old[i], new[j]):
                pairs.append((i, j))
                start = j + 1
                break
    return pairs


def _same_node(old: ast.AST, new: ast.AST) -> bool:
    """Whether `new` is `old` with changes below it, not another node in its place."""
    if type(old) is not type(new) or _scalars(old) != _scalars(new):
        return False
    if isinstance(old, ast.stmt | ast.keyword | ast.Call | ast.match_case):
        return similarity(element(old), element(new)) != DIFFERENT
    return bool(list(ast.iter_child_nodes(old)))


def _scalars(node: ast.AST) -> list[object]:
    values = [value for _, value in ast.iter_fields(node)]
    return [value for value in values if not isinstance(value, ast.AST | list)]
