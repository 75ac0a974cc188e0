"""What upstream changed in the functions that the series touches or relies on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from balance_tools.drift.symbols import (
    Change,
    Modules,
    Symbol,
    change,
    module_of,
    normalised,
)
from balance_tools.hooks.check_placement import patched_modules
from balance_tools.series.apply import Series

TOUCHED, RELIED_ON = "touched", "relied on"
OR = " | "


@dataclass(frozen=True)
class Subject:
    """A function or class of upstream that a patch touches or relies on."""

    symbol: str
    how: str
    patches: tuple[str, ...]
    names: tuple[str, ...]
    """Names that the hooks in it read."""


@dataclass(frozen=True)
class Drift:
    """What became of a subject; `change` is None if it is gone.

    `named` are names that the hooks read and that stand in changed lines.
    """

    subject: Subject
    change: Change | None
    named: tuple[str, ...]
    where: str

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sort key: gone first, then names of ours in the change, then its size."""
        lines = self.change.lines if self.change else 0
        touched = self.subject.how == TOUCHED
        return (0 if self.change is None else 1, -2 * len(self.named) - touched, -lines)


def subjects(series: Series, modules: Modules) -> list[Subject]:
    """Return what a series touches and relies on, touched ones first."""
    found: dict[str, Subject] = {}
    for module in patched_modules(series, modules.tree):
        dotted = module_of(module.path)
        for hook in module.hooks:
            if hook.anchor.scope:
                symbol = f"{dotted}.{hook.anchor.scope}"
                names = tuple(sorted(hook.anchor.uses))
                _add(found, symbol, TOUCHED, module.patch.name, names)
    for patch in series.patches:
        for names in patch.header.relies_on:
            symbol = OR.join(names).replace(":", ".")
            _add(found, symbol, RELIED_ON, patch.name, ())
    return list(found.values())


def _add(
    found: dict[str, Subject],
    symbol: str,
    how: str,
    patch: str,
    names: tuple[str, ...],
) -> None:
    known = found.get(symbol)
    if known is None:
        found[symbol] = Subject(symbol, how, (patch,), names)
    else:
        patches = tuple(dict.fromkeys([*known.patches, patch]))
        both = tuple(sorted({*known.names, *names}))
        found[symbol] = Subject(symbol, known.how, patches, both)


def drift(found: Iterable[Subject], old: Modules, new: Modules) -> list[Drift]:
    """Compare every subject between two trees; what matters most comes first."""
    result = []
    for subject in found:
        before, after = _find(old, subject.symbol), _find(new, subject.symbol)
        if before is None or after is None:
            side = old if before is None else new
            where = f"not found in {side.tree.name}"
            result.append(Drift(subject, None, (), where))
            continue
        one, other = _own(before.node), _own(after.node)
        changed = change(one, other)
        lines = set(normalised(one)) ^ set(normalised(other))
        words = set(re.findall(r"\w+", "\n".join(lines)))
        named = [n for n in subject.names if n.rpartition(".")[2] in words]
        result.append(Drift(subject, changed, tuple(sorted(named)), after.path))
    return sorted(result, key=lambda one: one.rank)


def _find(modules: Modules, symbol: str) -> Symbol | None:
    return next((s for s in map(modules.find, symbol.split(OR)) if s), None)


def _own(node: ast.AST) -> ast.AST:
    """Return a class without its methods, which are subjects of their own."""
    if not isinstance(node, ast.ClassDef):
        return node
    fields = [n for n in node.body if not isinstance(n, ast.FunctionDef | ast.ClassDef)]
    return ast.ClassDef(
        name=node.name,
        bases=node.bases,
        keywords=node.keywords,
        body=fields or [ast.Pass()],
        decorator_list=node.decorator_list,
    )
