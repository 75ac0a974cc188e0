"""A hook: code that a patch puts into a module at one place.

What is intended is read off the tree that the patch was made for, as syntax: function
or class, blocks around the hook, neighbours.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from balance_tools.errors import ToolError
from balance_tools.hooks.astdiff import Difference, Gap, Nodes, ast_differences, gaps
from balance_tools.hooks.elements import (
    EXACT,
    Element,
    defined_names,
    element,
    similarity,
    used_names,
)
from balance_tools.text import parse_module

_WORD = re.compile(rb"[A-Za-z_]\w+")


@dataclass(frozen=True)
class Hook:
    """Where a hook belongs, and its code."""

    old: Gap
    """The gap in the base."""
    new: Gap
    """The same in the patched module, with the code in it."""
    copies: tuple[int, int]
    """How often each neighbour occurs in the scope."""

    @property
    def scope(self) -> str:
        """Qualified name of the function or class; "" is the module."""
        return self.old.scope

    @property
    def neighbours(self) -> tuple[Element | None, Element | None]:
        """The nodes just before and after it; None at the edge of the list."""
        before, after = self.old.before, self.old.after
        return element(before) if before else None, element(after) if after else None

    @property
    def line(self) -> int:
        """First line of the hook in the patched module."""
        return first_line(self.new)

    @property
    def uses(self) -> frozenset[str]:
        """Dotted names that it reads."""
        return used_names(self.new.inside)

    def is_independent_of(self, nodes: Nodes) -> bool:
        """Whether it makes no difference to the names if the hook runs before these."""
        binds = defined_names(self.new.inside)
        return not (self.uses & defined_names(nodes) or binds & used_names(nodes))


def first_line(gap: Gap) -> int:
    """The first line of the nodes inside a gap, 0 for nodes without one."""
    return min((getattr(node, "lineno", 0) for node in gap.inside), default=0)


def dumps(nodes: Nodes) -> tuple[str, ...]:
    """Return the nodes without formatting and line numbers."""
    return tuple(map(ast.dump, nodes))


def hooks_between(base: bytes, patched: bytes, name: str = "module") -> list[Hook]:
    """Return the hooks that turn `base` into `patched`, in the order of the lines.

    Raises:
        ToolError: one of the two is not valid Python, or code is taken out.
    """
    old, new = parse_module(base, name), parse_module(patched, name)
    return [_hook(found, old, name) for found in ast_differences(old, new)]


def _hook(found: Difference, tree: ast.AST, name: str) -> Hook:
    if found.old.width:
        raise ToolError(
            f"{name}: expected hooks that only add code, found one that takes out or "
            f"replaces some (line {first_line(found.new)}, in "
            f"{found.new.scope or 'the module'}); add it beside upstream's code"
        )
    hook = Hook(found.old, found.new, (0, 0))
    counted = copies(list(gaps(tree, hook.scope)), *hook.neighbours)
    return Hook(found.old, found.new, counted)


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


def also_upstream(hook: Hook, base: bytes, upstream: bytes) -> list[str]:
    """Return the words that the hook brings to its module, if upstream uses them, too.

    Empty unless upstream has at least half of them: then perhaps it has the hook, at
    another place or in other words.
    """
    inserted = " ".join(map(ast.unparse, hook.new.inside)).encode()
    own = {*_WORD.findall(inserted)} - {*_WORD.findall(base)}
    shared = own & {*_WORD.findall(upstream)}
    return sorted(w.decode() for w in shared) if 2 * len(shared) >= len(own) else []
