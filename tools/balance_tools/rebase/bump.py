"""One bump, from the sources to the new series in its place, and its report."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from balance_tools.contract.fit import OURS, findings, read_pin, status_of
from balance_tools.drift.report import Drift, drift, drift_markdown
from balance_tools.drift.symbols import Modules
from balance_tools.errors import ToolError
from balance_tools.files import named_in_part, remove_tree, write_atomically
from balance_tools.hooks.model import HookResult, PatchResult, Status, worst
from balance_tools.paths import Paths
from balance_tools.rebase.journal import Session, Work, in_progress, work_root
from balance_tools.rebase.line import write_line
from balance_tools.rebase.patches import place_all
from balance_tools.rebase.sources import NewUpstream, pinned_trees, plans_between
from balance_tools.run import capture, git
from balance_tools.series.apply import load_series, patched_files
from balance_tools.text import table
from balance_tools.upstream.lock import dump_lock, load_lock

PACKAGE = "vllm"


def start(paths: Paths, new: NewUpstream, dry_run: bool, line: str) -> int:
    """Begin a bump, and do all of it that needs no person; return the exit code.

    `dry_run` judges every patch and changes nothing. `line` is the name of the line to
    write; "" replaces the pin.

    Raises:
        ToolError: another one is in progress, the series cannot be read, or git does
            not have what the bump would replace.
    """
    if (other := in_progress(paths)) is not None and not dry_run:
        raise ToolError(
            f"{other.path}: expected no bump in progress, found the one to "
            f"{other.load().target}; finish it with tools/rebase.sh continue or drop "
            "it with tools/rebase.sh abort"
        )
    if new.lock and not dry_run:
        _check_committed(paths, line)
    old = pinned_trees(paths, load_lock(paths.lock))
    text = dump_lock(new.lock) if new.lock else ""
    plans = plans_between(paths, old, new.trees)
    session = Session(new.name, plans, text, dry_run=dry_run, line=line)
    work = Work(work_root(paths) / (new.name + ".dry-run" * dry_run))
    work.empty()
    return go_on(paths, work, session)


def go_on(paths: Paths, work: Work, session: Session) -> int:
    """Do every step of a bump that is left; stop where a person must decide.

    Only the last step changes the repository. A bump that is killed begins again.
    """
    # The patches one by one, from the old tree to the new one; then the new series as
    # quilt writes it, applied to the new tree, and compared.
    session = place_all(work, session)
    if session.pending:
        work.save(session)
        return _ask(work, session, session.pending)
    # What upstream changed around it, and whether our files still fit.
    drifts = {
        p.package: drift(p.series, Modules(p.old_tree), Modules(p.new_tree))
        for p in session.plans
    }
    wrong, misfit = _misfits(paths, work, session)
    report = write_report(work.path, session, drifts, wrong)
    if misfit.needs_human:
        if not session.dry_run:
            work.save(session)
        print(
            f"{report}: {misfit.label}: {len(wrong)} findings; correct our files and "
            "run tools/rebase.sh continue, or abort, correct the Relies-On lines and "
            "begin again; nothing is replaced",
            file=sys.stderr,
        )
        return misfit.exit_code
    # One last step puts it in place.
    said = _put_in_place(paths, work, session)
    work.journal.unlink(missing_ok=True)
    print(f"{said}{report}: written")
    return exit_code(session)


def _ask(work: Work, session: Session, waits: PatchResult) -> int:
    """Say what waits for a person, and where."""
    report = write_report(work.path, session)
    print(f"{report}: {waits.name}: {waits.status.label}", file=sys.stderr)
    for reason in waits.reasons:
        print(f"  {reason}", file=sys.stderr)
    for path in session.files:
        print(f"  edit {work.edited(waits.package) / path}", file=sys.stderr)
    print("  then tools/rebase.sh continue; or skip; or abort", file=sys.stderr)
    return exit_code(session)


def _misfits(paths: Paths, work: Work, session: Session) -> tuple[list[str], Status]:
    """Hold our files against the release: what does not fit, and how bad that is."""
    if exit_code(session) != 0:  # a dry run that got stuck
        return [], Status.UNTOUCHED
    plan = session.plan(PACKAGE)
    print(f"checking our files against {plan.new_label}", file=sys.stderr, flush=True)
    pin = read_pin(paths, load_lock(paths.lock), plan.series)
    if pin is None:
        print(f"note: no files of ours in {OURS[0]} here", file=sys.stderr)
        return [], Status.UNTOUCHED
    series = load_series(work.final_series(PACKAGE))
    scratch = paths.build / "contract" / session.target
    patched = patched_files(series, plan.new_tree)
    found = findings(pin, series, patched, plan.new_tree, scratch)
    for one in found:
        print(f"  {one}", file=sys.stderr)
    return list(map(str, found)), status_of(found)


def _put_in_place(paths: Paths, work: Work, session: Session) -> str:
    """Put the new series where it belongs; return a line that says where, or ""."""
    if session.dry_run:
        return ""
    if not session.lock:
        return (
            f"{work.final}: the new series; the new upstream is a folder, which no "
            "lock can name, so patches/ and upstream.toml are as before\n"
        )
    _check_committed(paths, session.line)
    if session.line:
        line = write_line(paths, session, work)
        return f"{line}: written; tools/rebase.sh line {line.name} makes its sources\n"
    for plan in session.plans:
        target = paths.patches(plan.package)
        new = target.with_name(f".{plan.package}.new")
        remove_tree(new)
        shutil.copytree(work.final_series(plan.package), new)
        remove_tree(target)
        new.rename(target)
    write_atomically(paths.lock, session.lock)
    return f"{paths.lock.name} and patches/ are now for {session.target}\n"


def _check_committed(paths: Paths, line: str) -> None:
    """Check that nothing is lost by the last step; outside git nobody can know."""
    names = [f"lines/{line}"] if line else [paths.lock.name, "patches"]
    if shutil.which("git") is None:
        return
    found = capture(git(paths.root, "status", "--porcelain", "--", *names))
    changed = [row[3:] for row in found.text.splitlines()]
    if changed and not found.status:
        raise ToolError(
            f"{named_in_part(changed)}: expected what git has, for a bump replaces it, "
            "found changes that are not committed; commit or stash them, and run this "
            "again"
        )


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
    drifts: Mapping[str, Sequence[Drift]] | None = None,
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
            name: list(map(asdict, rows)) for name, rows in (drifts or {}).items()
        },
        "wrong": list(wrong),
    }
    text = json.dumps(data, indent=1, default=lambda status: status.label)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")
    text = _markdown(session) + (drift_markdown(drifts) if drifts else "")
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
        )
        for result in _all(session)
    ]
    lines += table(("package", "patch", "status"), rows)
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


def _row(hook: HookResult) -> tuple[str, ...]:
    moved = f"{hook.old_line or '–'} → {hook.new_line or '–'}"
    note = hook.note.replace("|", "\\|")
    return hook.path, hook.scope or "(module)", moved, hook.how or "nobody", note
