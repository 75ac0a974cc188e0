"""What upstream changed in the functions that the series touches or relies on.

A merge cannot know what a change means; a person should read it.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from balance_tools.drift.symbols import Modules, module_of
from balance_tools.hooks.elements import DEFINITIONS
from balance_tools.hooks.hook import hooks_between
from balance_tools.series.apply import Series, patched_steps
from balance_tools.text import changed_lines, table

TOUCHED, RELIED_ON = "touched", "relied on"
OR = " | "


@dataclass
class Drift:
    """A function or class of upstream, and what became of it between two releases."""

    symbol: str
    how: str
    """TOUCHED or RELIED_ON."""
    patches: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    """Names that the hooks in it read; after the comparison, those in changed lines."""
    added: int = 0
    removed: int = 0
    """Changed lines of its source, without formatting, comments and docstrings."""
    gone: str = ""
    """Why it could not be compared."""

    @property
    def change(self) -> str:
        """What became of it, in a word."""
        changed = self.added or self.removed
        return self.gone or (f"+{self.added} −{self.removed}" if changed else "none")


def drift(series: Series, old: Modules, new: Modules) -> list[Drift]:
    """Compare what a series touches and relies on; what matters most comes first."""
    rows = _subjects(series, old)
    for row in rows:
        before, after = (
            next(filter(None, map(tree.find, row.symbol.split(OR))), None)
            for tree in (old, new)
        )
        if before is None or after is None:
            missing = old if before is None else new
            row.gone = f"not found in {missing.tree.name}"
            continue
        lines = normalised(before), normalised(after)
        row.removed, row.added = map(len, changed_lines(*lines))
        words = set(re.findall(r"\w+", "\n".join(set(lines[0]) ^ set(lines[1]))))
        row.named = [n for n in row.named if n.rpartition(".")[2] in words]
    return sorted(
        rows, key=lambda row: (not row.gone, -len(row.named), -row.added - row.removed)
    )


def _subjects(series: Series, modules: Modules) -> list[Drift]:
    """Return what a series touches and relies on, touched ones first."""
    found: dict[str, Drift] = {}

    def add(symbol: str, how: str, patch: str, names: set[str]) -> None:
        row = found.setdefault(symbol, Drift(symbol, how))
        row.patches = [*dict.fromkeys([*row.patches, patch])]
        row.named = sorted({*row.named, *names})

    for patch, before, after in patched_steps(series, modules.tree):
        for path in after:
            for hook in hooks_between(before[path], after[path], path):
                if hook.scope:
                    symbol = f"{module_of(path)}.{hook.scope}"
                    add(symbol, TOUCHED, patch.name, {*hook.uses})
    for patch in series.patches:
        for names in patch.header.relies_on:
            add(OR.join(names).replace(":", "."), RELIED_ON, patch.name, set())
    return list(found.values())


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


def drift_markdown(packages: Mapping[str, Sequence[Drift]]) -> list[str]:
    """Return the lines of a table for each package."""
    lines: list[str] = []
    columns = ("function", "the series", "change", "names of the hooks in it")
    for package, rows in packages.items():
        title = f"## {package}: drift of what the series touches or relies on"
        cells = [
            (r.symbol, r.how, r.change, ", ".join(r.named) or "–", ", ".join(r.patches))
            for r in rows
        ]
        lines += ["", title, "", *table((*columns, "patches"), cells)]
    return lines
