"""Prove that every hook of a patch stands where it was meant to stand.

A text match is not proof: a hunk can land in a neighbouring function. What is intended
is read off the tree that the patch was made for, as syntax: function or class, blocks
around the hook, neighbours. The proof looks up where each hook belongs in the other
tree and compares that with where it is.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

from balance_tools.errors import ToolError
from balance_tools.hooks.astdiff import Difference, Gap, Nodes, ast_differences, gaps
from balance_tools.hooks.elements import (
    DIFFERENT,
    EXACT,
    defined_names,
    element,
    used_names,
)
from balance_tools.hooks.locate import Anchor, copies, locate, score
from balance_tools.text import parse_module

_WORD = re.compile(rb"[A-Za-z_]\w+")


@dataclass(frozen=True)
class Hook:
    """Code that a patch puts into a module at one place.

    `old` is the gap in the base, `new` the one in the patched module with the code.
    """

    anchor: Anchor
    old: Gap
    new: Gap

    @property
    def inserted(self) -> tuple[str, ...]:
        """The normalised nodes that the patch puts in."""
        return dumps(self.new.inside)

    @property
    def line(self) -> int:
        """First line of the hook in the patched module."""
        return min(getattr(node, "lineno", 0) for node in self.new.inside)


def dumps(nodes: Nodes) -> tuple[str, ...]:
    """Return the nodes without formatting and line numbers."""
    return tuple(map(ast.dump, nodes))


def placement_of(base: bytes, patched: bytes, name: str = "module") -> list[Hook]:
    """Return the hooks that turn `base` into `patched`, in the order of the lines.

    Raises:
        ToolError: one of the two is not valid Python, or code is taken out.
    """
    old, new = parse_module(base, name), parse_module(patched, name)
    hooks = []
    for found in ast_differences(old, new):
        if found.old.width:
            raise ToolError(
                f"{name}: expected hooks that only add code, found one that takes out "
                f"or replaces some ({_where(found)}); add it beside upstream's code"
            )
        hooks.append(Hook(_anchor(found, old), found.old, found.new))
    return hooks


def _anchor(found: Difference, tree: ast.AST) -> Anchor:
    old, new = found.old, found.new
    before = element(old.before) if old.before else None
    after = element(old.after) if old.after else None
    return Anchor(
        scope=old.scope,
        path=old.path,
        before=before,
        after=after,
        uses=used_names(new.inside),
        binds=defined_names(new.inside),
        copies=copies(list(gaps(tree, old.scope)), before, after),
    )


def check_placement(
    hooks: list[Hook], base: bytes, patched: bytes, name: str = "module"
) -> list[str]:
    """Check that another version of a module has these hooks, each at its place.

    Args:
        hooks: From `placement_of`, on the version that the patch was made for.
        base: The other version without the hooks.
        patched: The other version with them.
        name: The module's path, for messages.

    Returns:
        A sentence for each hook that is not at its place, and each change that is none.

    Raises:
        ToolError: a source is not valid Python.
    """
    old, new = parse_module(base, name), parse_module(patched, name)
    found = ast_differences(old, new)
    problems: list[str] = []
    for hook in hooks:
        same = [one for one in found if dumps(one.new.inside) == hook.inserted]
        place = locate(hook.anchor, old)
        if isinstance(place, str):
            problems.append(f"the hook meant for {hook.anchor}: {place}")
            found = [one for one in found if one not in same]
            continue
        allowed = (place.gap, *place.also)
        here = [one for one in same if any(_same_gap(one.old, g) for g in allowed)]
        if not here:
            where = f"it stands at {_where(same[0])}" if same else "it is not there"
            problems.append(f"the hook meant for {hook.anchor}: {where}")
        for one in (here or same)[:1]:
            found.remove(one)
    changes = (f"{_where(other)}: a change that belongs to no hook" for other in found)
    return [*problems, *changes]


def _where(found: Difference) -> str:
    line = min((getattr(n, "lineno", 0) for n in found.new.inside), default=0)
    return f"line {line}, in {found.new.scope or 'the module'}"


def already_there(hook: Hook, upstream: ast.AST) -> bool:
    """Whether the unpatched module has exactly the hook's code at the hook's place."""
    anchor, width = hook.anchor, len(hook.inserted)
    for gap in (replace(gap, width=width) for gap in gaps(upstream, anchor.scope)):
        levels = score(anchor, gap)
        alike = EXACT in levels or DIFFERENT not in levels
        same = len(gap.path) == len(anchor.path) and dumps(gap.inside) == hook.inserted
        if same and alike:
            return True
    return False


def also_upstream(hook: Hook, base: bytes, upstream: bytes) -> list[str]:
    """Return the words that the hook brings to its module, if upstream uses them, too.

    Empty unless upstream has at least half of them: then perhaps it has the hook, at
    another place or in other words.
    """
    inserted = " ".join(map(ast.unparse, hook.new.inside)).encode()
    own = {*_WORD.findall(inserted)} - {*_WORD.findall(base)}
    shared = own & {*_WORD.findall(upstream)}
    return sorted(w.decode() for w in shared) if 2 * len(shared) >= len(own) else []


def _same_gap(one: Gap, other: Gap) -> bool:
    around = one.before is other.before and one.after is other.after
    same = (one.scope, one.path, one.width) == (other.scope, other.path, other.width)
    return around and same
