"""The drift part of a report: what a merge cannot know and a person should read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from balance_tools.drift.functions import Drift, drift, subjects
from balance_tools.drift.replaced import (
    PLUGIN,
    UPSTREAM,
    Copy,
    Replacement,
    copies,
    overlaps,
    replacements,
)
from balance_tools.drift.symbols import Modules
from balance_tools.markdown import table
from balance_tools.series.apply import Series


@dataclass(frozen=True)
class DriftReport:
    """What changed around the series between two releases."""

    packages: Mapping[str, Sequence[Drift]]
    """Of each package, what the series touches or relies on, most relevant first."""
    overlaps: Sequence[tuple[str, Replacement]]
    """Pairs of a function of the series and what vllm_ascend puts in place of it, or of
    a part of it, at run time.
    """
    copies: Sequence[Copy] | None
    """Functions of vLLM that vllm_ascend carries as copies, most drifted first; None if
    they were not looked for.
    """

    def markdown(self) -> str:
        """Return the tables."""
        lines: list[str] = []
        for package, rows in self.packages.items():
            lines += _drift_table(package, rows)
        lines += _overlap_table(self.overlaps)
        if self.copies is not None:
            lines += _copies_table(self.copies)
        return "\n".join(lines) + "\n"

    def data(self) -> dict[str, Any]:
        """Return the same for a program."""
        return {
            "packages": {
                package: [_row_data(row) for row in rows]
                for package, rows in self.packages.items()
            },
            "replaced_at_run_time": [
                {"function": symbol, **asdict(one)} for symbol, one in self.overlaps
            ],
            "copies": None
            if self.copies is None
            else [asdict(one) for one in self.copies],
        }


def drift_report(
    trees: Mapping[str, tuple[Path, Path]],
    series: Mapping[str, Series],
    with_copies: bool,
) -> DriftReport:
    """Read the drift from the trees.

    Args:
        trees: By package, the old tree and the new one.
        series: By package, for the old trees.
        with_copies: Whether to compare every copy too (takes a while).
    """
    packages: dict[str, list[Drift]] = {}
    symbols: list[str] = []
    modules = {package: Modules(new) for package, (_, new) in trees.items()}
    for package, (old_tree, _) in trees.items():
        old = Modules(old_tree)
        found = subjects(series[package], old)
        symbols += [subject.symbol for subject in found]
        packages[package] = drift(found, old, modules[package])
    replaced = replacements(modules[PLUGIN])
    found_copies = (
        copies(modules[PLUGIN], modules[UPSTREAM], replaced) if with_copies else None
    )
    pairs = list(dict.fromkeys(overlaps(symbols, replaced)))
    return DriftReport(packages, pairs, found_copies)


def _row_data(row: Drift) -> dict[str, Any]:
    subject = row.subject
    return {
        "function": subject.symbol,
        "series": subject.how,
        "patches": list(subject.patches),
        "found": row.change is not None,
        "where": row.where,
        "added": row.change.added if row.change else None,
        "removed": row.change.removed if row.change else None,
        "names_of_the_hooks": list(row.named),
    }


def _drift_table(package: str, found: Sequence[Drift]) -> list[str]:
    """Return the table of drift, most relevant first."""
    rows = []
    for row in found:
        subject, change = row.subject, row.where
        if row.change is not None:
            change = str(row.change) if row.change.lines else "none"
        named = ", ".join(row.named) or "–"
        patches = ", ".join(subject.patches)
        rows.append((subject.symbol, subject.how, change, named, patches))
    columns = (
        "function",
        "the series",
        "change",
        "names of the hooks in it",
        "patches",
    )
    title = f"## {package}: drift of what the series touches or relies on"
    return ["", title, "", *table(columns, rows)]


def _overlap_table(pairs: Sequence[tuple[str, Replacement]]) -> list[str]:
    """Return the table of what vllm_ascend replaces at run time among our functions."""
    lines = ["", f"## What {PLUGIN} replaces at run time among them", ""]
    if not pairs:
        return [*lines, "Nothing."]
    rows = [
        (symbol, one.symbol, f"{one.path}:{one.line}", one.by) for symbol, one in pairs
    ]
    return lines + table(("function of the series", "replaced", "in", "by"), rows)


def _copies_table(found: Sequence[Copy]) -> list[str]:
    """Return the table of copies that vllm_ascend carries, most drifted first."""
    rows = [
        (
            one.symbol,
            f"{one.path}:{one.line} {one.scope}",
            one.lines,
            f"{one.likeness:.0%}",
            one.drift,
        )
        for one in found
    ]
    columns = ("function of vLLM", "copy", "lines", "alike", "drift")
    title = f"## Copies of upstream functions in {PLUGIN}, with their drift"
    return ["", title, "", *table(columns, rows)]
