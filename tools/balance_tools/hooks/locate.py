"""Find the place of a hook in another version of its module, or say why it has none.

Nothing is placed on weak evidence: the scope must be there, the blocks around the place
must be recognisable, at least one neighbour must be found, and no second place may
answer the description.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from balance_tools.hooks.astdiff import Gap, Level, Nodes, gaps
from balance_tools.hooks.elements import (
    DIFFERENT,
    EXACT,
    SIMILAR,
    Element,
    element,
    similarity,
)
from balance_tools.hooks.hook import Hook, copies, dumps

MOST_SHOWN = 80  # characters of a statement in a message


@dataclass(frozen=True)
class Place:
    """Where a hook goes; `notes` say what upstream changed around it."""

    gap: Gap
    notes: tuple[str, ...] = ()


def _quoted(neighbour: Element | None) -> str:
    """Return the first line of a neighbour for a message."""
    if neighbour is None:
        return "the edge of the block"
    first = neighbour.text.splitlines()[0]
    return f"`{first if len(first) <= MOST_SHOWN else first[: MOST_SHOWN - 1] + '…'}`"


def locate(hook: Hook, tree: ast.AST) -> Place | str:
    """Find the one gap of `tree` that the hook belongs into, or say why none is."""
    scope, neighbours = hook.scope or "the module", hook.neighbours
    everywhere = list(gaps(tree, hook.scope))
    if not everywhere:
        return f"{scope} does not exist any more"
    found = copies(everywhere, *neighbours)
    for neighbour, was, now in zip(neighbours, hook.copies, found, strict=True):
        if now > was > 0:
            return (
                f"{_quoted(neighbour)} occurs {now} times in {scope}, {was} in the old "
                "release: it is not clear which of them the hook belongs to"
            )
    candidates = [gap for gap in everywhere if _same_path(hook.old.path, gap.path)]
    both = [gap for gap in candidates if _score(hook, gap) == (EXACT, EXACT)]
    if len(both) == 1:
        return Place(both[0])
    if both:
        return f"{len(both)} places in {scope} look like the hook's"
    alike = [gap for gap in candidates if DIFFERENT not in _score(hook, gap)]
    if len(alike) == 1:
        return Place(alike[0], _changes(hook, alike[0]))
    return _by_one_neighbour(hook, candidates)


def _by_one_neighbour(hook: Hook, candidates: list[Gap]) -> Place | str:
    """Place the hook next to the neighbour that is left, or that it belongs to."""
    scope, (before, after) = hook.scope or "the module", hook.neighbours
    lost = f"neither {_quoted(before)} nor {_quoted(after)} is in {scope} any more"
    behind = _next_to(before, [(gap, gap.before) for gap in candidates])
    ahead = _next_to(after, [(gap, gap.after) for gap in candidates])
    if len(behind) > 1 or len(ahead) > 1:
        return f"several places in {scope} look like the hook's"
    if not behind and not ahead:
        return lost
    if behind and ahead and behind[0] != ahead[0]:
        first, second = behind[0], ahead[0]
        if first.siblings is not second.siblings or first.index > second.index:
            return (
                f"{_quoted(before)} and {_quoted(after)} have changed places in {scope}"
            )
        between = first.siblings[first.index : second.index]
        note = f"upstream put {_listed(between)} between the hook's neighbours"
        if _order_is_free(hook, between) or hook.is_independent_of(between):
            return Place(first, (f"{note}; it went right behind the first",))
        return f"{note} in {scope}, and they share names with the hook"
    gap = (behind or ahead)[0]
    levels = _score(hook, gap)
    if DIFFERENT in levels and EXACT not in levels:
        return lost
    return Place(gap, _changes(hook, gap))


def already_there(hook: Hook, upstream: ast.AST) -> bool:
    """Whether the unpatched module has exactly the hook's code at the hook's place."""
    inserted, path = dumps(hook.new.inside), hook.old.path
    for gap in gaps(upstream, hook.scope):
        with_hook = replace(gap, width=len(inserted))
        levels = _score(hook, with_hook)
        alike = EXACT in levels or DIFFERENT not in levels
        same = len(gap.path) == len(path) and dumps(with_hook.inside) == inserted
        if same and alike:
            return True
    return False


def _changes(hook: Hook, gap: Gap) -> tuple[str, ...]:
    """Say which neighbours are not what they were."""
    return tuple(
        f"in {hook.scope or 'the module'}, {_quoted(wanted)} is now "
        f"{_quoted(element(node) if node else None)}"
        for wanted, node in zip(hook.neighbours, (gap.before, gap.after), strict=True)
        if _level(wanted, node) != EXACT
    )


def _next_to(
    wanted: Element | None, candidates: Sequence[tuple[Gap, ast.AST | None]]
) -> list[Gap]:
    """Return the gaps beside the wanted neighbour: exact ones, else similar ones."""
    if wanted is None or wanted.is_trivial:
        return []
    for level in (EXACT, SIMILAR):
        found = [gap for gap, node in candidates if _level(wanted, node) == level]
        if found:
            return found
    return []


def _order_is_free(hook: Hook, between: Nodes) -> bool:
    """Whether the list is one of like things whose order says nothing.

    Imports, keyword arguments, annotated fields, and calls of one function that differ
    in their first argument (`add_argument`).
    """
    all_of_them = [*map(element, between), *filter(None, hook.neighbours)]
    kinds = {one.kind for one in all_of_them}
    if kinds <= {"Import", "ImportFrom"} or kinds in ({"keyword"}, {"alias"}):
        return True
    if kinds <= {"AnnAssign", "Expr"} and "AnnAssign" in kinds:
        return all(
            one.kind == "AnnAssign" or one.text[0] in "'\"" for one in all_of_them
        )
    callees = {one.key.partition("(")[0] for one in all_of_them}
    return kinds == {"Expr"} and len(callees) == 1 and "" not in callees


def _score(hook: Hook, gap: Gap) -> tuple[int, int]:
    """Return how like the neighbours of a gap are to those of the hook."""
    before, after = hook.neighbours
    return _level(before, gap.before), _level(after, gap.after)


def _level(wanted: Element | None, node: ast.AST | None) -> int:
    if wanted is None or node is None:
        return EXACT if wanted is None and node is None else DIFFERENT
    return similarity(wanted, element(node))


def _same_path(wanted: tuple[Level, ...], found: tuple[Level, ...]) -> bool:
    return len(wanted) == len(found) and all(
        one.field == other.field and similarity(one.owner, other.owner) != DIFFERENT
        for one, other in zip(wanted, found, strict=True)
    )


def _listed(nodes: Nodes) -> str:
    shown = ", ".join(_quoted(element(node)) for node in nodes[:3])
    return shown + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
