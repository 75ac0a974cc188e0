"""A hook: code that a patch puts into a module at one place; and where it goes.

What is intended is read off the tree that the patch was made for, as syntax: function
or class, blocks around the hook, neighbours. In another version of the module nothing
is placed on weak evidence: the scope must be there, the blocks around the place must be
recognisable, at least one neighbour must be found, and no second place may answer the
description.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from balance_tools.errors import ToolError
from balance_tools.hooks.astdiff import (
    Difference,
    Gap,
    Level,
    Nodes,
    ast_differences,
    gaps,
)
from balance_tools.hooks.elements import (
    DIFFERENT,
    EXACT,
    SIMILAR,
    Element,
    defined_names,
    element,
    similarity,
    used_names,
)
from balance_tools.text import parse_module

MOST_SHOWN = 80  # characters of a statement in a message
_WORD = re.compile(rb"[A-Za-z_]\w+")


@dataclass(frozen=True)
class Hook:
    old: Gap
    """The gap in the base."""
    new: Gap
    """The same in the patched module, with the code in it."""
    scope: str
    """Qualified name of the function or class; "" is the module."""
    neighbours: tuple[Element | None, Element | None]
    """The nodes just before and after it; None at the edge of the list."""
    copies: tuple[int, int]
    """How often each neighbour occurs in the scope."""
    line: int
    code: tuple[str, ...]
    """Its statements without formatting and line numbers."""
    uses: frozenset[str]


def first_line(gap: Gap) -> int:
    """The first line of the nodes inside a gap, 0 for nodes without one."""
    return min((getattr(node, "lineno", 0) for node in gap.inside), default=0)


def dumps(nodes: Nodes) -> tuple[str, ...]:
    return tuple(map(ast.dump, nodes))


def hooks_between(base: bytes, patched: bytes, name: str = "module") -> list[Hook]:
    """Return the hooks that turn `base` into `patched`, in the order of the lines."""
    old, new = parse_module(base, name), parse_module(patched, name)
    return [_hook(difference, old, name) for difference in ast_differences(old, new)]


def _hook(difference: Difference, tree: ast.AST, name: str) -> Hook:
    if difference.old.width:
        raise ToolError(
            f"{name}: expected hooks that only add code, found one that takes out or "
            f"replaces some (line {first_line(difference.new)}, in "
            f"{difference.new.scope or 'the module'}); add it beside upstream's code"
        )
    scope, nodes = difference.old.scope, (difference.old.before, difference.old.after)
    before, after = (element(node) if node else None for node in nodes)
    return Hook(
        old=difference.old,
        new=difference.new,
        scope=scope,
        neighbours=(before, after),
        copies=copies(list(gaps(tree, scope)), before, after),
        line=first_line(difference.new),
        code=dumps(difference.new.inside),
        uses=used_names(difference.new.inside),
    )


def copies(
    gaps: Sequence[Gap], before: Element | None, after: Element | None
) -> tuple[int, int]:
    """Count how often each of two neighbours stands right before one of the gaps."""
    elements = [element(gap.before) for gap in gaps if gap.before is not None]

    def count(neighbour: Element | None) -> int:
        if neighbour is None or neighbour.is_trivial:
            return 0
        return sum(similarity(candidate, neighbour) == EXACT for candidate in elements)

    return count(before), count(after)


def also_upstream(hook: Hook, base: bytes, upstream: bytes) -> list[str]:
    """Return the words that the hook brings to its module, if upstream uses them, too.

    Empty unless upstream has at least half of them: then it may have the hook, at
    another place or in other words. The module of an import does not count, because
    our modules have common names, such as `rank`.
    """
    inserted = " ".join(map(_without_source, hook.new.inside)).encode()
    words = {*_WORD.findall(inserted)} - {*_WORD.findall(base)}
    shared = words & {*_WORD.findall(upstream)}
    return sorted(w.decode() for w in shared) if 2 * len(shared) >= len(words) else []


def _without_source(node: ast.AST) -> str:
    if isinstance(node, ast.ImportFrom):
        return " ".join(alias.name for alias in node.names)
    return ast.unparse(node)


@dataclass(frozen=True)
class Place:
    """Where a hook goes; `notes` say what upstream changed around it."""

    gap: Gap
    notes: tuple[str, ...] = ()


def _quoted(neighbour: Element | None) -> str:
    if neighbour is None:
        return "the edge of the block"
    first = neighbour.text.splitlines()[0]
    return f"`{first if len(first) <= MOST_SHOWN else first[: MOST_SHOWN - 1] + '…'}`"


def locate(hook: Hook, tree: ast.AST) -> Place:
    scope, neighbours = hook.scope or "the module", hook.neighbours
    everywhere = list(gaps(tree, hook.scope))
    if not everywhere:
        raise ToolError(f"{scope} does not exist any more")
    counts = copies(everywhere, *neighbours)
    for neighbour, was, now in zip(neighbours, hook.copies, counts, strict=True):
        if now > was > 0:
            raise ToolError(
                f"{_quoted(neighbour)} occurs {now} times in {scope}, {was} in the old "
                "release: it is not clear which of them the hook belongs to"
            )
    candidates = [gap for gap in everywhere if _same_path(hook.old.path, gap.path)]
    exact = [gap for gap in candidates if _score(hook, gap) == (EXACT, EXACT)]
    if len(exact) == 1:
        return Place(exact[0])
    if exact:
        raise ToolError(f"{len(exact)} places in {scope} look like the hook's")
    similar = [gap for gap in candidates if DIFFERENT not in _score(hook, gap)]
    if len(similar) == 1:
        return Place(similar[0], _changes(hook, similar[0]))
    return _by_one_neighbour(hook, candidates)


def _by_one_neighbour(hook: Hook, candidates: list[Gap]) -> Place:
    scope, (before, after) = hook.scope or "the module", hook.neighbours
    lost = f"neither {_quoted(before)} nor {_quoted(after)} is in {scope} any more"
    behind = _next_to(before, [(gap, gap.before) for gap in candidates])
    ahead = _next_to(after, [(gap, gap.after) for gap in candidates])
    if len(behind) > 1 or len(ahead) > 1:
        raise ToolError(f"several places in {scope} look like the hook's")
    if not behind and not ahead:
        raise ToolError(lost)
    if behind and ahead and behind[0] != ahead[0]:
        first, second = behind[0], ahead[0]
        if first.siblings is not second.siblings or first.index > second.index:
            raise ToolError(
                f"{_quoted(before)} and {_quoted(after)} have changed places in {scope}"
            )
        between = first.siblings[first.index : second.index]
        note = f"upstream put {_listed(between)} between the hook's neighbours"
        if _order_is_free(hook, between) or _is_independent(hook, between):
            return Place(first, (f"{note}; it went right behind the first",))
        raise ToolError(f"{note} in {scope}, and they share names with the hook")
    gap = (behind or ahead)[0]
    levels = _score(hook, gap)
    if DIFFERENT in levels and EXACT not in levels:
        raise ToolError(lost)
    return Place(gap, _changes(hook, gap))


def already_there(hook: Hook, upstream: ast.AST) -> bool:
    """Whether the unpatched module has exactly the hook's code at the hook's place."""
    inserted, path = hook.code, hook.old.path
    for gap in gaps(upstream, hook.scope):
        with_hook = replace(gap, width=len(inserted))
        levels = _score(hook, with_hook)
        is_similar = EXACT in levels or DIFFERENT not in levels
        same = len(gap.path) == len(path) and dumps(with_hook.inside) == inserted
        if same and is_similar:
            return True
    return False


def _changes(hook: Hook, gap: Gap) -> tuple[str, ...]:
    return tuple(
        f"in {hook.scope or 'the module'}, {_quoted(old)} is now "
        f"{_quoted(element(node) if node else None)}"
        for old, node in zip(hook.neighbours, (gap.before, gap.after), strict=True)
        if _level(old, node) != EXACT
    )


def _next_to(
    neighbour: Element | None, candidates: Sequence[tuple[Gap, ast.AST | None]]
) -> list[Gap]:
    if neighbour is None or neighbour.is_trivial:
        return []
    for level in (EXACT, SIMILAR):
        beside = [gap for gap, node in candidates if _level(neighbour, node) == level]
        if beside:
            return beside
    return []


def _order_is_free(hook: Hook, between: Nodes) -> bool:
    """Whether the hook is in a list whose order has no meaning.

    Imports, keyword arguments, annotated fields, and calls of one function that differ
    in their first argument (`add_argument`).
    """
    statements = [*map(element, between), *filter(None, hook.neighbours)]
    kinds = {statement.kind for statement in statements}
    if kinds <= {"Import", "ImportFrom"} or kinds in ({"keyword"}, {"alias"}):
        return True
    if kinds <= {"AnnAssign", "Expr"} and "AnnAssign" in kinds:
        return all(s.kind == "AnnAssign" or s.text[0] in "'\"" for s in statements)
    callees = {statement.key.partition("(")[0] for statement in statements}
    return kinds == {"Expr"} and len(callees) == 1 and "" not in callees


def _is_independent(hook: Hook, nodes: Nodes) -> bool:
    """Whether hook and nodes neither bind nor use a name of each other."""
    binds = defined_names(hook.new.inside)
    return not (hook.uses & defined_names(nodes) or binds & used_names(nodes))


def _score(hook: Hook, gap: Gap) -> tuple[int, int]:
    before, after = hook.neighbours
    return _level(before, gap.before), _level(after, gap.after)


def _level(neighbour: Element | None, node: ast.AST | None) -> int:
    if neighbour is None or node is None:
        return EXACT if neighbour is None and node is None else DIFFERENT
    return similarity(neighbour, element(node))


def _same_path(old: tuple[Level, ...], new: tuple[Level, ...]) -> bool:
    return len(old) == len(new) and all(
        was.field == now.field and similarity(was.owner, now.owner) != DIFFERENT
        for was, now in zip(old, new, strict=True)
    )


def _listed(nodes: Nodes) -> str:
    shown = ", ".join(_quoted(element(node)) for node in nodes[:3])
    return shown + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
