"""One bump, from the sources to the new series in its place, and its report."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from balance_tools.contract.fit import Finding, Pin, findings, read_pin, status_of
from balance_tools.drift.report import drift
from balance_tools.drift.symbols import Modules
from balance_tools.errors import ToolError
from balance_tools.files import named_in_part, remove_tree, write_atomically
from balance_tools.hooks.model import HookResult, PatchResult, PatchStatus, worst
from balance_tools.paths import Paths
from balance_tools.rebase.advisories import advisories_markdown
from balance_tools.rebase.limits import limits_markdown
from balance_tools.rebase.line import Line, all_lines, check_own, move_all, write_line
from balance_tools.rebase.merge import Merged, write_merged
from balance_tools.rebase.move import Moved, Own
from balance_tools.run import edited, git
from balance_tools.series.apply import load_series
from balance_tools.text import table
from balance_tools.upstream.lock import Lock, dump_lock

PACKAGE = "vllm"


class Judged(NamedTuple):
    moves: Sequence[Moved]
    """The moved series of each package; empty where upstream has another layout."""
    misfits: Sequence[Finding]
    """Misfits of our files and hooks; empty unless all hooks have places."""

    @property
    def results(self) -> list[PatchResult]:
        return [result for moved in self.moves for result in moved.results]

    @property
    def placed(self) -> bool:
        worst_one = worst(moved.status for moved in self.moves)
        return bool(self.moves) and not worst_one.needs_human

    @property
    def status(self) -> PatchStatus:
        if self.misfits:
            return status_of(self.misfits)
        return worst(moved.status for moved in self.moves)


def judge(
    paths: Paths, lock: Lock, own: Own, folder: Path, pin: Pin | None = None
) -> Judged:
    """Move the series to the releases of `lock`, and hold our files against them.

    The patches move one by one; then the new series, as quilt writes it into `folder`,
    which is replaced, is applied to the new tree and compared.
    """
    moves = move_all(paths, lock, own)
    remove_tree(folder)
    for moved in moves:
        moved.write(folder / moved.package)
    judged = Judged(moves, ())
    if judged.placed:
        new, scratch = moves[0].new, paths.build / "contract" / "new"
        print(f"checking our files against {new.name}", file=sys.stderr, flush=True)
        series = load_series(folder / PACKAGE)
        misfits = findings(pin or read_pin(paths), series, new, scratch)
        judged = judged._replace(misfits=misfits)
    return judged


def bump(paths: Paths, lock: Lock, dry_run: bool, name: str) -> int:
    """Move the series to the releases of `lock`; return the exit code.

    The result is written below build/rebase/VERSION. Only if no person must decide,
    the last step puts it in place: in lines/NAME, or for the pin if `name` is "". If it
    is stopped before that, it can be run again.
    """
    line = Line(paths.root / "lines" / name) if name else _line_of(paths, lock)
    if not (dry_run or name):
        _check_committed(paths, line)
    if line:
        check_own(paths, line, unfinished=True)
    folder = paths.build / "rebase" / lock.vllm.version
    judged = judge(paths, lock, line.own if line else {}, folder / "patches")
    moves, misfits, status = judged.moves, judged.misfits, judged.status
    report = folder / "report.md"
    for_users = advisories_markdown(paths, lock.vllm.version, moves)
    for_users += limits_markdown(paths, moves)
    undecided = [file for moved in moves for file in moved.undecided]
    merged = write_merged(undecided, folder / "merged")
    write_atomically(report, markdown(moves, misfits, for_users, merged))
    if status.needs_human:
        _ask(report, moves, misfits, merged, name)
        return status.exit_code
    if not dry_run and name and line:
        write_line(paths, line, lock, moves)
        print(f"{line.folder}: written; tools/rebase.sh line {name} makes its sources")
    elif not dry_run:
        _replace_pin(paths, folder, lock, line)
    print(f"{report}: written")
    return status.exit_code


def _line_of(paths: Paths, lock: Lock) -> Line | None:
    """The line that has exactly these releases, and becomes the pin."""
    for line in all_lines(paths):
        if line.lock.packages == lock.packages:
            return line
    return None


def _ask(
    report: Path,
    moves: Sequence[Moved],
    misfits: Sequence[Finding],
    merged: Merged,
    name: str,
) -> None:
    for moved in moves:
        for result in moved.results:
            if not result.status.needs_human:
                continue
            patch = f"patches/{moved.package}/{result.name}"
            print(f"{patch}: {result.status.label}", file=sys.stderr)
            for reason in (*result.reasons, *merged.get(result.key, ())):
                print(f"  {reason}", file=sys.stderr)
            print(
                f"  copy {report.parent / patch}, which has what is placed, to "
                f"lines/{name or 'NAME'}/{patch} and complete it, or leave an empty "
                f"file there to drop it; then run this with --line {name or 'NAME'}",
                file=sys.stderr,
            )
    for finding in misfits:
        print(f"  {finding}", file=sys.stderr)
    print(
        f"{report}: nothing is replaced; correct what is named above, and run this "
        "again",
        file=sys.stderr,
    )


def _replace_pin(paths: Paths, folder: Path, lock: Lock, line: Line | None) -> None:
    for package in lock.packages:
        target = paths.patches(package)
        copy = target.with_name(f".{package}.new")
        remove_tree(copy)
        shutil.copytree(folder / "patches" / package, copy)
        remove_tree(target)
        copy.rename(target)
    write_atomically(paths.lock, dump_lock(lock))
    if line:
        remove_tree(line.folder)
    print(f"{paths.lock.name} and patches/ are now for vllm {lock.vllm.version}")


def _check_committed(paths: Paths, line: Line | None) -> None:
    if not (paths.root / ".git").exists():
        return
    names = [paths.lock.name, "patches"]
    if line:
        names.append(f"lines/{line.name}")
    ask = ("status", "--porcelain", "--untracked-files=normal", "--")
    status = git(paths.root, *ask, *names)
    if status.status:
        raise ToolError(
            f"{paths.root}: expected git to say what is committed, for a bump replaces "
            f"it, found {status.tail}; fix that, and run this again"
        )
    rows = [row[3:] for row in status.text.splitlines()]
    if changed := [*dict.fromkeys([*rows, *edited(paths.root, *names)])]:
        raise ToolError(
            f"{named_in_part(changed)}: expected what git has, for a bump replaces it, "
            "found changes that are not committed; commit or stash them, and run this "
            "again"
        )


def markdown(
    moves: Sequence[Moved],
    misfits: Sequence[Finding],
    for_users: Sequence[str],
    merged: Merged,
) -> str:
    """Return the report: each patch and hook, what upstream changed, what is wrong.

    `for_users` is the lines about published vulnerabilities and limits.
    """
    labels = ", ".join(f"{moved.old.name} → {moved.new.name}" for moved in moves)
    lines = [f"# Rebase: {labels}", ""]
    results = [result for moved in moves for result in moved.results]
    rows = [
        (r.package, r.name, r.status.label + ", left out" * r.dropped) for r in results
    ]
    lines += table(("package", "patch", "status"), rows)
    for result in results:
        lines += ["", f"## {result.package}: {result.name}", ""]
        notes = [*result.notes, *merged.get(result.key, ())]
        lines += [f"- {note}" for note in notes] + [""] * bool(notes and result.hooks)
        if result.hooks:
            lines += table(("file", "in", "line", "remark"), map(_row, result.hooks))
    lines += [*for_users, "", "## What upstream changed around the series"]
    for moved in moves:
        lines += drift(moved.series, Modules(moved.old), Modules(moved.new))
    if misfits:
        lines += ["", "## What does not fit", "", *(f"- {text}" for text in misfits)]
    return "\n".join(lines) + "\n"


def _row(hook: HookResult) -> tuple[str, ...]:
    moved = f"{hook.old_line or '–'} → {hook.new_line or '–'}"
    note = hook.note.replace("|", "\\|")
    return hook.path, hook.scope or "(module)", moved, note
