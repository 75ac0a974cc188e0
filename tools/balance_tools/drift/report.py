"""Reports upstream's changes of the functions that the series touches or relies on.

A merge cannot know what a change means; a person should read it.
"""

from __future__ import annotations

import ast
import copy
import re
from difflib import unified_diff

from balance_tools.drift.symbols import Modules, module_of
from balance_tools.hooks.elements import DEFINITIONS
from balance_tools.hooks.hook import hooks_between
from balance_tools.series.apply import Series, patched_steps

OR = " | "


def drift(series: Series, old: Modules, new: Modules) -> list[str]:
    """Return, in Markdown, the changes of what a series touches and relies on.

    Without formatting, comments and docstrings. First what changed lines have names in
    that hooks there read, and of the others the shortest.
    """
    reports: list[tuple[int, int, list[str]]] = []
    for symbol, (patches, uses) in _subjects(series, old).items():
        names = symbol.split(OR)
        before, after = (
            next(filter(None, map(tree.find, names)), None) for tree in (old, new)
        )
        if before is None or after is None:
            changed = [f"Not found in {(new if before else old).tree.name}."]
        else:
            texts = normalised(before), normalised(after)
            changed = [*unified_diff(*texts, lineterm="")][2:]
            changed = changed and ["```diff", *changed, "```"]
        if changed:
            lines = (line for line in changed if line[0] in "+-")
            changed_words = set(re.findall(r"\w+", " ".join(lines)))
            read = sorted(name for name in uses if name.split(".")[-1] in changed_words)
            section = ["", f"### {symbol} ({', '.join(patches)})", ""]
            section += [f"Hooks read {', '.join(read)}.", ""] if read else []
            reports.append((-len(read), len(changed), section + changed))
    return [line for *_, lines in sorted(reports) for line in lines]


def _subjects(
    series: Series, modules: Modules
) -> dict[str, tuple[dict[str, None], set[str]]]:
    """Return what patches touch and rely on, to their names and what hooks read."""
    subjects: dict[str, tuple[dict[str, None], set[str]]] = {}
    for patch, before, after in patched_steps(series, modules.tree):
        for path in after:
            for hook in hooks_between(before[path], after[path], path):
                if hook.scope:
                    symbol = f"{module_of(path)}.{hook.scope}"
                    patches, uses = subjects.setdefault(symbol, ({}, set()))
                    patches[patch.name] = None
                    uses |= hook.uses
    for patch in series.patches:
        for names in patch.header.relies_on:
            symbol = OR.join(names).replace(":", ".")
            subjects.setdefault(symbol, ({}, set()))[0][patch.name] = None
    return subjects


def normalised(node: ast.AST) -> list[str]:
    """Return a definition's source in one form, without comments and docstrings.

    A class comes without its methods, which are subjects of their own.
    """
    bare = copy.deepcopy(node)
    if isinstance(bare, ast.ClassDef):
        methods = (ast.FunctionDef, ast.ClassDef)
        bare.body = [n for n in bare.body if not isinstance(n, methods)] or [ast.Pass()]
    for part in ast.walk(bare):
        if isinstance(part, DEFINITIONS) and ast.get_docstring(part) is not None:
            part.body = part.body[1:] or [ast.Pass()]
    return ast.unparse(bare).splitlines()
