"""The drift part of a report: what a merge cannot know and a person should read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from balance_tools.drift.functions import Drift, drift, subjects
from balance_tools.drift.replaced import PLUGIN, Replacement, overlaps, replacements
from balance_tools.drift.symbols import Modules
from balance_tools.markdown import table
from balance_tools.series.apply import Series


@dataclass(frozen=True)
class DriftReport:
    """What changed around the series between two releases."""

    packages: Mapping[str, Sequence[Drift]]
    """Of each package, what the series touches or relies on, most relevant first."""
    replaced: Sequence[tuple[str, Replacement]]
    """Pairs of a function of the series and what vllm_ascend puts in place of it, or of
    a part of it, at run time.
    """

    def markdown(self) -> str:
        """Return the tables."""
        lines: list[str] = []
        for package, rows in self.packages.items():
            title = f"## {package}: drift of what the series touches or relies on"
            columns = ("function", "the series", "change", "names of the hooks in it")
            lines += ["", title, "", *table((*columns, "patches"), map(_row, rows))]
        lines += ["", f"## What {PLUGIN} replaces at run time among them", ""]
        pairs = [
            (symbol, one.symbol, f"{one.path}:{one.line}", one.by)
            for symbol, one in self.replaced
        ]
        columns = ("function of the series", "replaced", "in", "by")
        lines += table(columns, pairs) if pairs else ["Nothing."]
        return "\n".join(lines) + "\n"


def drift_report(
    trees: Mapping[str, tuple[Path, Path]], series: Mapping[str, Series]
) -> DriftReport:
    """Read the drift from the trees.

    Args:
        trees: By package, the old tree and the new one.
        series: By package, for the old trees.
    """
    packages: dict[str, list[Drift]] = {}
    symbols: list[str] = []
    modules = {package: Modules(new) for package, (_, new) in trees.items()}
    for package, (old_tree, _) in trees.items():
        old = Modules(old_tree)
        found = subjects(series[package], old)
        symbols += [subject.symbol for subject in found]
        packages[package] = drift(found, old, modules[package])
    pairs = overlaps(symbols, replacements(modules[PLUGIN]))
    return DriftReport(packages, list(dict.fromkeys(pairs)))


def _row(row: Drift) -> tuple[str, ...]:
    subject, change = row.subject, row.where
    if row.change is not None:
        change = str(row.change) if row.change.lines else "none"
    named = ", ".join(row.named) or "–"
    return subject.symbol, subject.how, change, named, ", ".join(subject.patches)
