"""One bump, from the sources to the new series in its place, and its report."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from balance_tools.contract.fit import OURS, findings, read_pin, status_of
from balance_tools.drift.report import drift
from balance_tools.drift.symbols import Modules
from balance_tools.errors import ToolError
from balance_tools.files import named_in_part, remove_tree, write_atomically
from balance_tools.hooks.model import HookResult, Status
from balance_tools.paths import Paths
from balance_tools.rebase.line import write_line
from balance_tools.rebase.patches import (
    Move,
    Placed,
    leave_for_person,
    moves_to,
    place_all,
    take_edit,
)
from balance_tools.rebase.work import Work, in_progress, work_root
from balance_tools.run import capture, git
from balance_tools.series.apply import load_series
from balance_tools.text import table
from balance_tools.upstream.lock import Lock, dump_lock

PACKAGE = "vllm"


def start(paths: Paths, lock: Lock, dry_run: bool, line: str) -> int:
    """Begin a bump to the releases of `lock`; return the exit code.

    `dry_run` judges every patch and changes nothing. `line` is the name of the line to
    write; "" replaces the pin.

    Raises:
        ToolError: another one is in progress, the series cannot be read, or git does
            not have what the bump would replace.
    """
    if (other := in_progress(paths)) is not None and not dry_run:
        raise ToolError(
            f"{other.path}: expected no bump in progress, found this one; finish it "
            "with tools/rebase.sh continue or drop it with tools/rebase.sh abort"
        )
    if not dry_run:
        _check_committed(paths, line)
    work = Work(work_root(paths) / (lock.vllm.version + ".dry-run" * dry_run))
    work.empty()
    return _go_on(paths, work, lock, line, dry_run)


def resume(paths: Paths, work: Work, skip: bool) -> int:
    """Go on with a bump that waits: with what a person edited, or without the patch.

    Raises:
        ToolError: the edit is not done, or no patch waits that could be skipped.
    """
    lock, line = work.load()
    moves = moves_to(paths, lock)
    pending = place_all(work, moves, work.decided(), quiet=True).pending
    if pending and skip:
        work.decide(pending.series.move.package, pending.patch.name, b"")
    elif pending:
        take_edit(work, pending)
    elif skip:
        raise ToolError("skip: no patch waits; run tools/rebase.sh continue or abort")
    return _go_on(paths, work, lock, line, dry_run=False)


def _go_on(paths: Paths, work: Work, lock: Lock, line: str, dry_run: bool) -> int:
    """Do every step of a bump that is left, as far as no person must decide.

    Only the last step changes the repository. A bump that is killed begins again.
    """
    # The patches one by one, from the old tree to the new one; then the new series as
    # quilt writes it, applied to the new tree, and compared.
    moves = moves_to(paths, lock)
    placed = place_all(work, moves, work.decided(), stop=not dry_run)
    if placed.pending:
        leave_for_person(work, placed.pending)
        work.save(lock, line)
        return _ask(work, write_report(work, moves, placed), placed)
    # What upstream changed around it, and whether our files still fit.
    drifts = [
        row
        for move in moves
        for row in drift(move.series, Modules(move.old), Modules(move.new))
    ]
    wrong, misfit = _misfits(paths, work, moves[0].new, placed)
    report = write_report(work, moves, placed, drifts, wrong)
    if misfit.needs_human:
        if not dry_run:
            work.save(lock, line)
        print(
            f"{report}: {misfit.label}: {len(wrong)} findings; correct our files or "
            "the Relies-On lines and run tools/rebase.sh continue, or abort; nothing "
            "is replaced",
            file=sys.stderr,
        )
        return misfit.exit_code
    # One last step puts it in place.
    if not dry_run:
        print(_put_in_place(paths, work, lock, line, placed))
        work.finish()
    print(f"{report}: written")
    return placed.status.exit_code


def _ask(work: Work, report: Path, placed: Placed) -> int:
    """Say what waits for a person, and where."""
    assert placed.pending is not None
    waits = placed.results[-1]
    print(f"{report}: {waits.name}: {waits.status.label}", file=sys.stderr)
    for reason in waits.reasons:
        print(f"  {reason}", file=sys.stderr)
    for path in placed.pending.files:
        print(f"  edit {work.edited(waits.package) / path}", file=sys.stderr)
    print("  then tools/rebase.sh continue; or skip; or abort", file=sys.stderr)
    return placed.status.exit_code


def _misfits(
    paths: Paths, work: Work, new: Path, placed: Placed
) -> tuple[list[str], Status]:
    """Hold our files against the release: what does not fit, and how bad that is."""
    if placed.status.needs_human:  # a dry run that got stuck
        return [], Status.UNTOUCHED
    print(f"checking our files against {new.name}", file=sys.stderr, flush=True)
    pin = read_pin(paths)
    if pin is None:
        print(f"note: no files of ours in {OURS[0]} here", file=sys.stderr)
        return [], Status.UNTOUCHED
    series = load_series(work.final_series(PACKAGE))
    scratch = paths.build / "contract" / work.path.name
    found = findings(pin, series, new, scratch)
    for one in found:
        print(f"  {one}", file=sys.stderr)
    return list(map(str, found)), status_of(found)


def _put_in_place(
    paths: Paths, work: Work, lock: Lock, line: str, placed: Placed
) -> str:
    """Put the new series where it belongs; return a sentence that says where."""
    _check_committed(paths, line)
    if line:
        folder = write_line(paths, line, lock, placed.results, work)
        return f"{folder}: written; tools/rebase.sh line {line} makes its sources"
    for package in lock.packages:
        target = paths.patches(package)
        copy = target.with_name(f".{package}.new")
        remove_tree(copy)
        shutil.copytree(work.final_series(package), copy)
        remove_tree(target)
        copy.rename(target)
    write_atomically(paths.lock, dump_lock(lock))
    return f"{paths.lock.name} and patches/ are now for vllm {lock.vllm.version}"


def _check_committed(paths: Paths, line: str) -> None:
    """Check that nothing is lost by the last step; outside git nobody can know."""
    names = [f"lines/{line}"] if line else [paths.lock.name, "patches"]
    if shutil.which("git") is None:
        return
    ask = git(paths.root, "status", "--porcelain", "--untracked-files=normal", "--")
    found = capture([*ask, *names])
    if found.status and (paths.root / ".git").exists():
        raise ToolError(
            f"{paths.root}: expected git to say what is committed, for a bump replaces "
            f"it, found {found.tail}; mend that, and run this again"
        )
    changed = [row[3:] for row in found.text.splitlines()]
    if changed and not found.status:
        raise ToolError(
            f"{named_in_part(changed)}: expected what git has, for a bump replaces it, "
            "found changes that are not committed; commit or stash them, and run this "
            "again"
        )


def write_report(
    work: Work,
    moves: Sequence[Move],
    placed: Placed,
    drifts: Sequence[str] = (),
    wrong: Sequence[str] = (),
) -> Path:
    """Write report.md and return its path.

    `drifts` is what upstream changed around the series, and `wrong` what of ours does
    not fit the release.
    """
    labels = ", ".join(f"{move.old.name} → {move.new.name}" for move in moves)
    lines = [f"# Rebase: {labels}", ""]
    rows = [
        (one.package, one.name, one.status.label + ", left out" * one.dropped)
        for one in placed.results
    ]
    lines += table(("package", "patch", "status"), rows)
    for result in placed.results:
        lines += ["", f"## {result.package}: {result.name}", ""]
        lines += [f"- {note}" for note in result.notes]
        if result.hooks:
            lines += table(("file", "in", "line", "remark"), map(_row, result.hooks))
    if placed.pending:
        lines += ["", "## Waits for a decision", ""]
        lines += [f"- edit {path}" for path in placed.pending.files]
        lines.append("- then tools/rebase.sh continue; or skip; or abort")
    if drifts:
        lines += ["", "## What upstream changed around the series", *drifts]
    if wrong:
        lines += ["", "## What does not fit", "", *(f"- {one}" for one in wrong)]
    report = work.path / "report.md"
    report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return report


def _row(hook: HookResult) -> tuple[str, ...]:
    moved = f"{hook.old_line or '–'} → {hook.new_line or '–'}"
    note = hook.note.replace("|", "\\|")
    return hook.path, hook.scope or "(module)", moved, note
