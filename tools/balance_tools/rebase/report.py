"""The report of a rebase: Markdown for people, JSON for machines."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from balance_tools.drift.report import DriftReport
from balance_tools.hooks.model import HookResult, PatchResult, Status, placed_by, worst
from balance_tools.markdown import table
from balance_tools.rebase.session import Session
from balance_tools.verify.verdict import Verdict


def exit_code(session: Session) -> int:
    """Return the exit code of the worst status; that of a dropped patch is 0."""
    return worst(_statuses(session)).exit_code


def _statuses(session: Session) -> list[Status]:
    results = [r.status for r in session.results if not r.dropped]
    return [*results, session.pending.result.status] if session.pending else results


def write_report(
    folder: Path,
    session: Session,
    drift: DriftReport | None = None,
    verdict: Verdict | None = None,
) -> Path:
    """Write report.md and report.json into `folder`; return the former.

    Both hold the drift and the verification as far as they are known.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"drift": drift, "verification": verdict}
    data = {
        "format": 1,
        "target": session.target,
        "status": worst(_statuses(session)).label,
        "exit_code": exit_code(session),
        "stage": session.stage,
        "packages": [
            {"name": p.package, "from": p.old_label, "to": p.new_label}
            for p in session.plans
        ],
        "patches": [asdict(result) for result in _all(session)],
        "waits_for": list(session.pending.files) if session.pending else [],
        "seconds": dict(session.seconds),
        **{name: part.data() if part else None for name, part in parts.items()},
    }
    text = json.dumps(data, indent=1, default=lambda status: status.label)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")
    report = folder / "report.md"
    more = "".join(part.markdown() for part in parts.values() if part)
    report.write_text(markdown(session) + more, encoding="utf-8")
    return report


def _all(session: Session) -> list[PatchResult]:
    waiting = [session.pending.result] if session.pending else []
    return [*session.results, *waiting]


def markdown(session: Session) -> str:
    """Return the report as text."""
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
        lines += [f"- edit {path}" for path in session.pending.files]
        lines.append(
            "- then tools/rebase.sh --continue; --skip leaves the patch out; --abort "
            "goes back"
        )
    seconds = [(name, f"{value:.1f}") for name, value in session.seconds.items()]
    lines += ["", "## Time", "", *table(("step", "seconds"), seconds)]
    return "\n".join(lines) + "\n"


def _how(hooks: tuple[HookResult, ...]) -> str:
    counts = placed_by(hooks).items()
    return ", ".join(f"{how} {count}" for how, count in counts) or "–"


def _row(hook: HookResult) -> tuple[str, ...]:
    moved = f"{hook.old_line or '–'} → {hook.new_line or '–'}"
    note = hook.note.replace("|", "\\|")
    return hook.path, hook.scope or "(module)", moved, hook.how or "nobody", note
