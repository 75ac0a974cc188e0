"""Place the patches of a series on new upstream, until a person must decide."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.hooks.model import FileVerdict, PatchResult, Status, worst
from balance_tools.hooks.outcome import Sides, check_edit, decide
from balance_tools.manifest import walk
from balance_tools.rebase.journal import Contents, Plan, Session, Work
from balance_tools.series.apply import (
    SERIES,
    apply_to_bytes,
    load_series,
    patched_files,
    patched_steps,
)
from balance_tools.series.patchfile import FilePatch, Patch

Own = Mapping[tuple[str, str], Patch]
"""By package and name, patches of the target itself that are taken as they are."""


def place_all(
    work: Work, session: Session, own: Own | None = None, quiet: bool = False
) -> Session:
    """Rebase patch by patch onto new upstream, as far as no person is needed.

    A dry run goes on behind a patch that waits for a person. Once no patch waits, the
    new series is below `work`, and is proven.

    Raises:
        ToolError: a series does not apply to the tree that it was made for, or a patch
            of `own` does not apply.
    """
    steps = {
        plan.package: [
            {},
            *(new for _, new in patched_steps(plan.series, plan.old_tree)),
        ]
        for plan in session.plans
    }
    while due := session.next_patch():
        plan, patch = due
        contents: Contents
        if mine := (own or {}).get((plan.package, patch.name)):
            contents = {
                f.path: apply_to_bytes(f, plan.read(f.path), f"{mine.name}: {f.path}")
                for f in mine.files
            }
            result = PatchResult(plan.package, patch.name, Status.CONTENT_CHANGED)
        else:
            at = plan.series.patches.index(patch)
            before, after = steps[plan.package][at : at + 2]
            found = [_judge(plan, patch, f, before, after) for f in patch.files]
            contents = {verdict.path: verdict.partial for verdict in found}
            result = _result(plan.package, patch, found)
            if result.status.needs_human and not session.dry_run:
                files = _leave_for_person(work, plan, found)
                return replace(session, pending=result, files=files)
        session = session.after(result, contents)
        if not quiet:
            said = result.status.label if result.status.needs_human else "placed"
            print(f"{plan.package}: {patch.name}: {said}", file=sys.stderr, flush=True)
    remove_tree(work.final)
    for plan in session.plans:
        _write(plan, work.final_series(plan.package))
    return session


def _write(plan: Plan, folder: Path) -> None:
    """Write the new series of a package.

    Raises:
        ToolError: it does not give the tree that was proven; a fault of these tools.
    """
    folder.mkdir(parents=True)
    for name, raw in plan.made.items():
        (folder / name).write_bytes(raw)
    (folder / SERIES).write_text("".join(f"{name}\n" for name in plan.made))
    for path, content in patched_files(load_series(folder), plan.new_tree).items():
        if content != plan.read(path):
            raise ToolError(
                f"{folder}: {path} is not what was proven; this is a fault of "
                "tools/rebase.sh, report it"
            )


def _judge(
    plan: Plan, patch: Patch, file: FilePatch, before: Contents, after: Contents
) -> FileVerdict:
    """Judge one file of a patch, on new upstream as it is by now."""
    path, upstream = file.path, plan.read(file.path)
    if upstream is None:
        note = f"{path} is gone in {plan.new_label}, or a symbolic link"
        return FileVerdict(path, None, None, Status.TARGET_DELETED, notes=(note,))
    base = before.get(path) or (plan.old_tree / path).read_bytes()
    names = (plan.new_label, plan.old_label, patch.name)
    return decide(file, Sides(base, after[path] or b"", upstream, *names))


def _result(package: str, patch: Patch, verdicts: list[FileVerdict]) -> PatchResult:
    status = worst(verdict.status for verdict in verdicts)
    hooks = tuple(hook for verdict in verdicts for hook in verdict.hooks)
    notes = tuple(note for verdict in verdicts for note in verdict.notes)
    return PatchResult(package, patch.name, status, hooks, notes)


def _leave_for_person(
    work: Work, plan: Plan, verdicts: list[FileVerdict]
) -> tuple[str, ...]:
    """Copy new upstream with what is placed and the conflicts; returns the latter."""
    top, contents = work.edited(plan.package), dict(plan.now)
    remove_tree(top)
    shutil.copytree(plan.new_tree / plan.package, top / plan.package, symlinks=True)
    for verdict in verdicts:
        if verdict.content is not None:
            contents[verdict.path] = verdict.content
    for path, content in contents.items():
        if content is None:
            (top / path).unlink(missing_ok=True)
        else:
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_bytes(content)
    return tuple(verdict.path for verdict in verdicts if verdict.status.needs_human)


def accept(work: Work, session: Session) -> Session:
    """Take what a person made of the patch that waits, if one does.

    Raises:
        ToolError: conflict markers are left, a file is not Python, or nothing changed.
    """
    if session.pending is None:
        return session
    result = session.pending
    plan, top = session.plan(result.package), work.edited(result.package)
    there = [f"{plan.package}/{path}" for path in walk(top / plan.package)]
    was = [f"{plan.package}/{path}" for path in walk(plan.new_tree / plan.package)]
    contents: dict[str, bytes | None] = {}
    for path in sorted({*there, *was, *plan.now}):
        file = top / path
        content = file.read_bytes() if file.is_file() else None
        if not file.is_symlink() and content != plan.read(path):
            contents[path] = content
            if content is not None:
                check_edit(file)
    if not contents:
        raise ToolError(
            f"{top}: nothing is changed for {result.name}; edit "
            f"{', '.join(session.files) or 'the files'}, or leave the patch out with "
            "tools/rebase.sh skip"
        )
    hooks = tuple(
        replace(hook, how=hook.how or "hand", status=Status.CONTENT_CHANGED)
        if hook.status.needs_human
        else hook
        for hook in result.hooks
    )
    notes = (*result.notes, f"was {result.status.label}; decided by a person")
    status = Status.CONTENT_CHANGED
    result = replace(result, status=status, hooks=hooks, notes=notes)
    return session.after(result, contents)


def skip(work: Work, session: Session) -> Session:
    """Leave the pending patch out of the series."""
    if session.pending is None:
        raise ToolError("skip: no patch waits; run tools/rebase.sh continue or abort")
    notes = (*session.pending.notes, "left out by a person")
    return session.after(replace(session.pending, notes=notes, dropped=True), {})
