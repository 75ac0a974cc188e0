"""What upstream changed in the functions that the series touches or relies on."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from balance_tools.check_placement import patched_modules
from balance_tools.rebase.replaced import (
    PLUGIN,
    UPSTREAM,
    Copy,
    Replacement,
    copies,
    overlaps,
    replacements,
)
from balance_tools.rebase.session import Plan
from balance_tools.rebase.symbols import Change, Modules, change, normalised
from balance_tools.series import Series

TOUCHED, RELIED_ON = "touched", "relied on"


@dataclass(frozen=True)
class Subject:
    """A function or class of upstream that a patch touches or relies on."""

    symbol: str
    how: str
    patches: tuple[str, ...]
    names: frozenset[str]
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
        dotted = module.path.removesuffix(".py").removesuffix("/__init__")
        for hook in module.hooks:
            if hook.anchor.scope:
                symbol = f"{dotted.replace('/', '.')}.{hook.anchor.scope}"
                _add(found, symbol, TOUCHED, module.patch.name, hook.anchor.uses)
    for patch in series.patches:
        for symbol in patch.header.relies_on:
            _add(found, symbol.replace(":", "."), RELIED_ON, patch.name, frozenset())
    return list(found.values())


def _add(
    found: dict[str, Subject], symbol: str, how: str, patch: str, names: frozenset[str]
) -> None:
    known = found.get(symbol)
    if known is None:
        found[symbol] = Subject(symbol, how, (patch,), names)
    else:
        patches = tuple(dict.fromkeys([*known.patches, patch]))
        found[symbol] = Subject(symbol, known.how, patches, known.names | names)


def drift(found: Iterable[Subject], old: Modules, new: Modules) -> list[Drift]:
    """Compare every subject between two trees; what matters most comes first."""
    result = []
    for subject in found:
        before, after = old.find(subject.symbol), new.find(subject.symbol)
        if before is None or after is None:
            side = old if before is None else new
            where = f"not found in {side.tree.name}"
            result.append(Drift(subject, None, (), where))
            continue
        one, other = _own(before.node), _own(after.node)
        changed = change(one, other)
        lines = set(normalised(one)) ^ set(normalised(other))
        text = "\n".join(lines)
        named = tuple(sorted(name for name in subject.names if _in(name, text)))
        result.append(Drift(subject, changed, named, after.path))
    return sorted(result, key=lambda one: one.rank)


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


def _in(name: str, text: str) -> bool:
    last = name.rpartition(".")[2]
    return any(part == last for part in _words(text))


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()


def drift_markdown(package: str, rows: Sequence[Drift]) -> list[str]:
    """Return the table of drift, most relevant first."""
    lines = ["", f"## {package}: drift of what the series touches or relies on", ""]
    lines += ["| function | the series | change | names of the hooks in it | patches |"]
    lines += ["|---|---|---|---|---|"]
    for row in rows:
        changed = row.where if row.change is None else str(row.change)
        if row.change is not None and not row.change.lines:
            changed = "none"
        named = ", ".join(row.named) or "–"
        patches = ", ".join(row.subject.patches)
        subject = row.subject
        lines.append(
            f"| {subject.symbol} | {subject.how} | {changed} | {named} | {patches} |"
        )
    return lines


def overlap_markdown(pairs: Sequence[tuple[str, Replacement]]) -> list[str]:
    """Return the table of what vllm_ascend replaces at run time among our functions."""
    lines = ["", f"## What {PLUGIN} replaces at run time among them", ""]
    if not pairs:
        return [*lines, "Nothing."]
    lines += ["| function of the series | replaced | in | by |", "|---|---|---|---|"]
    for symbol, one in dict.fromkeys(pairs):
        lines.append(f"| {symbol} | {one.symbol} | {one.path}:{one.line} | {one.by} |")
    return lines


def copies_markdown(found: Sequence[Copy]) -> list[str]:
    """Return the table of copies that vllm_ascend carries, most drifted first."""
    lines = ["", f"## Copies of upstream functions in {PLUGIN}, with their drift", ""]
    lines += [
        "| function of vLLM | copy | lines | alike | drift |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        where = f"{one.path}:{one.line} {one.scope}"
        share = f"{one.likeness:.0%}"
        lines.append(
            f"| {one.symbol} | {where} | {one.lines} | {share} | {one.drift} |"
        )
    return lines


def drift_report(
    plans: Sequence[Plan], series: Mapping[str, Series], with_copies: bool
) -> str:
    """Return the drift part of a report.

    Args:
        plans: Of both packages.
        series: By package, for the old trees.
        with_copies: Whether to compare every copy too (takes a while).
    """
    lines: list[str] = []
    symbols: list[str] = []
    trees = {plan.package: Modules(Path(plan.new_tree)) for plan in plans}
    for plan in plans:
        old, new = Modules(Path(plan.old_tree)), trees[plan.package]
        found = subjects(series[plan.package], old)
        symbols += [subject.symbol for subject in found]
        lines += [*drift_markdown(plan.package, drift(found, old, new))]
    replaced = replacements(trees[PLUGIN])
    lines += overlap_markdown(overlaps(symbols, replaced))
    if with_copies:
        lines += copies_markdown(copies(trees[PLUGIN], trees[UPSTREAM], replaced))
    return "\n".join(lines) + "\n"
