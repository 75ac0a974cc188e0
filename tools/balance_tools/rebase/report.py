"""The report of a bump: Markdown for people, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from balance_tools.drift.report import Drift, drift_markdown
from balance_tools.hooks.model import HookResult, PatchResult, Status, placed_by, worst
from balance_tools.rebase.journal import Session
from balance_tools.text import table


def exit_code(session: Session) -> int:
    """Return the exit code of the worst status; that of a dropped patch is 0."""
    return _worst(session).exit_code


def _worst(session: Session) -> Status:
    return worst(result.status for result in _all(session) if not result.dropped)


def _all(session: Session) -> list[PatchResult]:
    waiting = [session.pending] if session.pending else []
    return [*session.results, *waiting]


def write_report(
    folder: Path,
    session: Session,
    drift: Mapping[str, Sequence[Drift]] | None = None,
    wrong: Sequence[str] = (),
) -> Path:
    """Write report.md and report.json into `folder`; return the former.

    `wrong` is what of ours does not fit the release.
    """
    data = {
        "target": session.target,
        "status": _worst(session).label,
        "exit_code": exit_code(session),
        "patches": [asdict(result) for result in _all(session)],
        "waits_for": list(session.files),
        "drift": {
            name: list(map(asdict, rows)) for name, rows in (drift or {}).items()
        },
        "wrong": list(wrong),
    }
    text = json.dumps(data, indent=1, default=lambda status: status.label)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")
    text = _markdown(session) + (drift_markdown(drift) if drift else "")
    if wrong:
        text += "\n## What does not fit\n\n" + "".join(f"- {one}\n" for one in wrong)
    report = folder / "report.md"
    report.write_text(text, encoding="utf-8")
    return report


def _markdown(session: Session) -> str:
    moves = ", ".join(f"{p.old_label} → {p.new_label}" for p in session.plans)
    lines = [f"# Rebase to {session.target}", "", moves, ""]
    rows = [
        (
            result.package,
            result.name,
            f"{result.status.label}{', left out' if result.dropped else ''}",
            _how(result.hooks),
        )
        for result in _all(session)
    ]
    lines += table(("package", "patch", "status", "hooks placed by"), rows)
    for result in _all(session):
        lines += ["", f"## {result.package}: {result.name}", ""]
        lines += [f"- {note}" for note in result.notes]
        if result.hooks:
            columns = ("file", "in", "line", "by", "remark")
            lines += table(columns, map(_row, result.hooks))
    if session.pending:
        lines += ["", "## Waits for a decision", ""]
        lines += [f"- edit {path}" for path in session.files]
        lines.append("- then tools/rebase.sh continue; or skip; or abort")
    return "\n".join(lines) + "\n"


def _how(hooks: tuple[HookResult, ...]) -> str:
    counts = placed_by(hooks).items()
    return ", ".join(f"{how} {count}" for how, count in counts) or "–"


def _row(hook: HookResult) -> tuple[str, ...]:
    moved = f"{hook.old_line or '–'} → {hook.new_line or '–'}"
    note = hook.note.replace("|", "\\|")
    return hook.path, hook.scope or "(module)", moved, hook.how or "nobody", note
