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
    defined_names,
    element,
    similarity,
    used_names,
)

MOST_SHOWN = 80  # characters of a statement in a message


@dataclass(frozen=True)
class Anchor:
    """Where a hook belongs, read off the tree that its patch was made for."""

    scope: str
    """Qualified name of the function or class; "" is the module."""
    path: tuple[Level, ...]
    """The blocks (and expressions) from the scope down to the list."""
    before: Element | None
    """The node just before, None at the start of the list."""
    after: Element | None
    """The node just after the hook, None at the end of the list."""
    uses: frozenset[str]
    """Dotted names that the hook reads."""
    binds: frozenset[str]
    """Dotted names that the hook binds."""
    copies: tuple[int, int]
    """How often each neighbour occurs in the scope."""

    @property
    def where(self) -> str:
        """The scope, for people."""
        return self.scope or "the module"

    def is_independent_of(self, nodes: Nodes) -> bool:
        """Whether it makes no difference to the names if the hook runs before these."""
        return not (self.uses & defined_names(nodes) or self.binds & used_names(nodes))

    def __str__(self) -> str:
        return f"{self.where}, between {_quoted(self.before)} and {_quoted(self.after)}"


@dataclass(frozen=True)
class Place:
    """Where the anchor is; `notes` say what upstream changed around it.

    `also` are gaps that serve as well, in a list whose order says nothing.
    """

    gap: Gap
    notes: tuple[str, ...] = ()
    also: tuple[Gap, ...] = ()


def _quoted(neighbour: Element | None) -> str:
    """Return the first line of a neighbour for a message."""
    if neighbour is None:
        return "the edge of the block"
    first = neighbour.text.splitlines()[0]
    return f"`{first if len(first) <= MOST_SHOWN else first[: MOST_SHOWN - 1] + '…'}`"


def copies(
    gaps: Sequence[Gap], before: Element | None, after: Element | None
) -> tuple[int, int]:
    """Count how often each of two neighbours stands right before one of the gaps."""
    found = [element(gap.before) for gap in gaps if gap.before is not None]

    def count(wanted: Element | None) -> int:
        if wanted is None or wanted.is_trivial:
            return 0
        return sum(similarity(one, wanted) == EXACT for one in found)

    return count(before), count(after)


def locate(anchor: Anchor, tree: ast.AST) -> Place | str:
    """Find the one gap of `tree` that the anchor describes, or say why none is."""
    scope, neighbours = anchor.where, (anchor.before, anchor.after)
    everywhere = list(gaps(tree, anchor.scope))
    if not everywhere:
        return f"{scope} does not exist any more"
    found = copies(everywhere, *neighbours)
    for neighbour, was, now in zip(neighbours, anchor.copies, found, strict=True):
        if now > was > 0:
            return (
                f"{_quoted(neighbour)} occurs {now} times in {scope}, {was} in the old "
                "release: it is not clear which of them the hook belongs to"
            )
    candidates = [gap for gap in everywhere if _same_path(anchor.path, gap.path)]
    both = [gap for gap in candidates if score(anchor, gap) == (EXACT, EXACT)]
    if len(both) == 1:
        return Place(both[0])
    if both:
        return f"{len(both)} places in {scope} look like the hook's"
    alike = [gap for gap in candidates if DIFFERENT not in score(anchor, gap)]
    if len(alike) == 1:
        return Place(alike[0], _changes(anchor, alike[0]))
    return _by_one_neighbour(anchor, candidates)


def _by_one_neighbour(anchor: Anchor, candidates: list[Gap]) -> Place | str:
    """Place the hook next to the neighbour that is left, or that it belongs to."""
    scope, neighbours = anchor.where, [_quoted(anchor.before), _quoted(anchor.after)]
    lost = f"neither {neighbours[0]} nor {neighbours[1]} is in {scope} any more"
    behind = _next_to(anchor.before, [(g, g.before) for g in candidates])
    ahead = _next_to(anchor.after, [(g, g.after) for g in candidates])
    if len(behind) > 1 or len(ahead) > 1:
        return f"several places in {scope} look like the hook's"
    if not behind and not ahead:
        return lost
    if behind and ahead and behind[0] != ahead[0]:
        first, second = behind[0], ahead[0]
        if first.siblings is not second.siblings or first.index > second.index:
            return f"{' and '.join(neighbours)} have changed places in {scope}"
        between = first.siblings[first.index : second.index]
        note = f"upstream put {_listed(between)} between the hook's neighbours"
        if _order_is_free(anchor, between):
            others = range(first.index + 1, second.index + 1)
            also = tuple(replace(first, index=index) for index in others)
            return Place(first, (note,), also)
        if anchor.is_independent_of(between):
            return Place(first, (f"{note}; it went right behind the first",))
        return f"{note} in {scope}, and they share names with the hook"
    gap = (behind or ahead)[0]
    levels = score(anchor, gap)
    if DIFFERENT in levels and EXACT not in levels:
        return lost
    return Place(gap, _changes(anchor, gap))


def _changes(anchor: Anchor, gap: Gap) -> tuple[str, ...]:
    """Say which neighbours are not what they were."""
    return tuple(
        f"in {anchor.where}, {_quoted(wanted)} is now "
        f"{_quoted(element(node) if node else None)}"
        for wanted, node in ((anchor.before, gap.before), (anchor.after, gap.after))
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


def _order_is_free(anchor: Anchor, between: Nodes) -> bool:
    """Whether the list is one of like things whose order says nothing.

    Imports, keyword arguments, annotated fields, and calls of one function that differ
    in their first argument (`add_argument`).
    """
    edges = [one for one in (anchor.before, anchor.after) if one]
    all_of_them = [*map(element, between), *edges]
    kinds = {one.kind for one in all_of_them}
    if kinds <= {"Import", "ImportFrom"} or kinds in ({"keyword"}, {"alias"}):
        return True
    if kinds <= {"AnnAssign", "Expr"} and "AnnAssign" in kinds:
        return all(
            one.kind == "AnnAssign" or one.text[0] in "'\"" for one in all_of_them
        )
    callees = {one.key.partition("(")[0] for one in all_of_them}
    return kinds == {"Expr"} and len(callees) == 1 and "" not in callees


def score(anchor: Anchor, gap: Gap) -> tuple[int, int]:
    """Return how like the neighbours of a gap are to those of the anchor."""
    return _level(anchor.before, gap.before), _level(anchor.after, gap.after)


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
