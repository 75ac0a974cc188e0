"""What a scan found: a row for each release, as a table for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from balance_tools.hooks.model import Status, worst
from balance_tools.markdown import table

PACKAGE = "vllm"
NOT_TRIED = "–"


@dataclass(frozen=True)
class ScannedPatch:
    """One patch on one release."""

    patch: str
    status: str
    """Its label."""
    reasons: tuple[str, ...]
    """Why a person must decide."""
    placed_by: dict[str, int]
    """How many hooks were placed by whom."""


@dataclass(frozen=True)
class ScannedRelease:
    """One release."""

    version: str
    """Of upstream."""
    cells: tuple[ScannedPatch, ...]
    """Its patches, in the order of the series."""
    seconds: float
    """The time it took."""
    fit: str = ""
    """Label of a status: whether our files and hooks fit; "" if a patch has no place,
    so that there was nothing to check.
    """
    findings: tuple[str, ...] = ()
    """What does not fit."""

    @property
    def placed(self) -> bool:
        """Whether every hook has a place."""
        return not any(Status.of(cell.status).needs_human for cell in self.cells)

    @property
    def checked(self) -> bool:
        """Whether everything has a place, and our files fit."""
        return self.placed and bool(self.fit) and not self.status.needs_human

    @property
    def status(self) -> Status:
        """The worst status."""
        found = [Status.of(cell.status) for cell in self.cells]
        return worst([*found, *([Status.of(self.fit)] if self.fit else [])])

    def by(self) -> str:
        """Return who placed how many hooks."""
        counts: Counter[str] = Counter()
        for cell in self.cells:
            counts.update(cell.placed_by)
        return ", ".join(f"{how} {counts[how]}" for how in sorted(counts))

    @classmethod
    def load(cls, data: dict[str, Any]) -> ScannedRelease:
        """Return what `asdict` and JSON made of a row."""
        cells = tuple(
            ScannedPatch(**{**cell, "reasons": tuple(cell["reasons"])})
            for cell in data.pop("cells")
        )
        return cls(cells=cells, findings=tuple(data.pop("findings")), **data)


def scan_markdown(rows: Sequence[ScannedRelease], pin: str) -> str:
    """Return the table and the reasons."""
    names = [cell.patch for cell in rows[0].cells]
    total = len(rows)
    lines = [
        f"# The series of {PACKAGE} {pin} on {total} releases",
        "",
        f"Placed with no human: {sum(row.placed for row in rows)} of {total}. "
        f"Checked (our files and hooks fit): {sum(row.checked for row in rows)} of "
        f"{total}.",
        "",
    ]
    columns = ("release", *names, "placed by", "checked", "seconds")
    lines += table(columns, map(_cells, rows))
    lines += ["", "## What a person must decide", ""]
    for row in rows:
        for cell in row.cells:
            lines += [f"- {row.version}, {cell.patch}: {why}" for why in cell.reasons]
        lines += [f"- {row.version}: {finding}" for finding in row.findings]
    return "\n".join(lines) + "\n"


def _cells(row: ScannedRelease) -> list[str]:
    statuses = [cell.status for cell in row.cells]
    checked = "yes" if row.checked else row.fit or NOT_TRIED
    told = [row.by(), checked, f"{row.seconds:.1f}"]
    return [row.version, *statuses, *told]


def write_scan(folder: Path, rows: Sequence[ScannedRelease], pin: str) -> Path:
    """Write scan.md; return its path."""
    report = folder / "scan.md"
    report.write_text(scan_markdown(rows, pin))
    return report
