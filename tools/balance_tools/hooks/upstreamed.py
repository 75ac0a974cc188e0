"""Whether upstream has a hook already: verbatim, or perhaps in other words."""

from __future__ import annotations

import ast
from math import ceil

from balance_tools.hooks.astdiff import Gap, gaps
from balance_tools.hooks.elements import DIFFERENT, EXACT
from balance_tools.hooks.locate import Anchor, score
from balance_tools.hooks.placement import Hook, dumps

# Share of the names that only the hook brings which upstream must use, too.
SUSPICIOUS = 0.5


def already_there(hook: Hook, upstream: ast.AST) -> bool:
    """Whether the unpatched module has exactly the hook's code at the hook's place.

    For a hook that only takes out: whether its neighbours now follow each other.
    """
    width = len(hook.inserted)
    for gap in gaps(upstream, hook.anchor.scope):
        if len(gap.path) != len(hook.anchor.path):
            continue
        wide = Gap(gap.scope, gap.path, gap.siblings, gap.index, width)
        if dumps(wide.inside) == hook.inserted and _between(hook.anchor, wide):
            return True
    return False


def _between(anchor: Anchor, gap: Gap) -> bool:
    levels = score(anchor, gap)
    if not gap.width:  # nothing but the neighbours speaks for it
        return levels == (EXACT, EXACT) and None not in (anchor.before, anchor.after)
    return EXACT in levels or DIFFERENT not in levels


def in_other_words(hook: Hook, base: ast.AST, upstream: ast.AST) -> list[str]:
    """Return the names that the hook brings and that upstream now uses, too.

    Empty unless upstream has SUSPICIOUS of the names that are in the hook but nowhere
    in the module that its patch was made for.
    """
    hooked: set[str] = set()
    for node in hook.new.inside:
        hooked |= identifiers(node)
    own = hooked - identifiers(base)
    shared = own & identifiers(upstream)
    return (
        sorted(shared) if shared and len(shared) >= ceil(len(own) * SUSPICIOUS) else []
    )


def identifiers(tree: ast.AST) -> set[str]:
    """Return every name, attribute, argument, definition and import of a tree."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                found.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.alias():
                found.add(node.name)
    return found
