"""Carry a rebase forward, patch by patch, until it is done or a person must decide."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.hooks.model import (
    FileOutcome,
    Labels,
    PatchResult,
    Status,
    worst,
)
from balance_tools.hooks.outcome import Sides, check_edit, decide
from balance_tools.rebase.repo import NEW, Repo, build_repo, patch_ref
from balance_tools.rebase.session import PATCHES, Pending, Plan, Session, Work
from balance_tools.series.apply import Series
from balance_tools.series.patchfile import Patch


def make_trees(
    work: Work, session: Session, series: dict[str, Series], quiet: bool = False
) -> Session:
    """Build the two-tree repository of every package.

    Raises:
        ToolError: a series does not apply to the tree that it was made for.
    """
    start = time.monotonic()
    for plan in session.plans:
        path = work.repo(plan.package)
        if not quiet:
            _say(f"{plan.package}: {plan.old_label} and {plan.new_label} into {path}")
        labels = (plan.old_label, plan.new_label)
        old, new = Path(plan.old_tree), Path(plan.new_tree)
        if path.exists():
            repo = Repo(path)
        else:
            repo = build_repo(
                path, plan.package, old, new, series[plan.package], labels
            )
        session = session.with_plan(replace(plan, tip=repo.commit_of(NEW), commits=()))
    session = replace(session, stage=PATCHES)
    return session.spent("two-tree repositories", time.monotonic() - start)


def next_patch(
    session: Session, series: dict[str, Series]
) -> tuple[Plan, Patch] | None:
    """Return the first patch that is not done, None if all are."""
    for plan in session.plans:
        patches = series[plan.package].patches
        if plan.done < len(patches):
            return plan, patches[plan.done]
    return None


def rebase_patch(
    work: Work, session: Session, plan: Plan, patch: Patch, quiet: bool = False
) -> Session:
    """Rebase one patch onto the tip; it is committed, or it waits for a person."""
    start = time.monotonic()
    repo = Repo(work.repo(plan.package))
    outcomes, git_commit = _outcomes(repo, plan, patch)
    status = worst([outcome.status for outcome in outcomes])
    every = {outcome.status for outcome in outcomes}
    if Status.ALREADY_UPSTREAM in every and len(every) > 1 and not status.needs_human:
        status = Status.CONFLICT
    hooks = tuple(hook for outcome in outcomes for hook in outcome.hooks)
    notes = tuple(note for outcome in outcomes for note in outcome.notes)
    result = PatchResult(plan.package, patch.name, status, hooks, notes)
    if not status.needs_human or session.dry_run:
        if git_commit and all(hook.how == "git" for hook in hooks):
            commit = git_commit
        else:
            repo.reset(plan.tip)
            repo.write({outcome.path: outcome.partial for outcome in outcomes})
            commit = repo.commit(patch.name)
        session = _committed(session, plan, replace(result, commit=commit))
    else:
        repo.reset(plan.tip)
        files = _leave_for_person(repo, outcomes)
        session = replace(session, pending=Pending(result, files))
    if not quiet:
        found = status.label if status.needs_human else "placed"
        _say(f"{plan.package}: {patch.name}: {found}")
    return session.spent("patches", time.monotonic() - start)


def _outcomes(repo: Repo, plan: Plan, patch: Patch) -> tuple[list[FileOutcome], str]:
    """Let git rebase the patch and judge every file; "" for a commit that is none."""
    before = repo.commit_of(patch_ref(plan.done))
    after = repo.commit_of(patch_ref(plan.done + 1))
    repo.reset(plan.tip)
    run = repo.git("rebase", "--onto", plan.tip, before, after, check=False)
    unmerged = set(repo.unmerged())
    if run.status and not unmerged:
        raise ToolError(
            f"{repo.path}: git rebase failed on {patch.name}: {run.tail}; run "
            "tools/rebase.sh --abort"
        )
    head = repo.commit_of("HEAD")
    paths = repo.python_files(plan.tip)

    def read(path: str) -> bytes | None:
        return repo.read(plan.tip, path)

    outcomes = []
    for file in patch.files:
        merged = repo.path / file.path
        sides = Sides(
            base=repo.read(before, file.path),
            patched=repo.read(after, file.path),
            upstream=read(file.path),
            merged=merged.read_bytes() if merged.is_file() else None,
            clean=file.path not in unmerged,
            link=repo.link(plan.tip, file.path),
            labels=Labels(plan.new_label, plan.old_label, patch.name),
        )
        outcomes.append(decide(file, sides, paths, read))
    return outcomes, "" if run.status or head == plan.tip else head


def _committed(session: Session, plan: Plan, result: PatchResult) -> Session:
    tip = result.commit or plan.tip
    plan = replace(plan, tip=tip, commits=(*plan.commits, result.commit))
    results = (*session.results, result)
    return replace(session.with_plan(plan), results=results, pending=None)


def _leave_for_person(repo: Repo, outcomes: list[FileOutcome]) -> tuple[str, ...]:
    """Write what is placed and the conflict files; return the latter."""
    files = []
    for outcome in outcomes:
        path = outcome.target or outcome.path
        if outcome.content is not None:
            file = repo.path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.is_symlink():
                file.write_bytes(outcome.content)
        if outcome.status.needs_human:
            files.append(path)
    return tuple(files)


def accept(work: Work, session: Session) -> Session:
    """Take what a person made of the patch that waits, or that it stopped after.

    Raises:
        ToolError: conflict markers are left, a file is not Python, or nothing changed.
    """
    if session.pending is None:
        return _amend(work, session) if session.stopped else session
    result = session.pending.result
    plan = next(p for p in session.plans if p.package == result.package)
    repo = Repo(work.repo(plan.package))
    if repo.commit_of("HEAD") != plan.tip:  # killed between the commit and the journal
        return _by_hand(session, plan, result, repo.commit_of("HEAD"))
    if not _stage_edits(repo, plan.tip):
        raise ToolError(
            f"{repo.path}: nothing is changed for {result.name}; edit "
            f"{', '.join(session.pending.files) or 'the files'}, or leave the patch "
            "out with tools/rebase.sh --skip"
        )
    return _by_hand(session, plan, result, repo.commit(result.name))


def _amend(work: Work, session: Session) -> Session:
    """Add what a person edited after a stop to the patch that was done last."""
    session = replace(session, stopped=False)
    result = session.results[-1]
    plan = next(p for p in session.plans if p.package == result.package)
    repo = Repo(work.repo(plan.package))
    before = repo.commit_of(f"{plan.tip}^")
    if repo.commit_of("HEAD") == plan.tip:
        if not _stage_edits(repo, plan.tip):
            return session
        repo.git("reset", "-q", "--soft", before)
        repo.commit(result.name)
    commit = repo.commit_of("HEAD")
    if repo.commit_of(f"{commit}^") != before:
        raise ToolError(
            f"{repo.path}: expected edits of {result.name}, found other commits; go "
            f"back with git checkout --detach {plan.tip}, or run tools/rebase.sh "
            "--abort"
        )
    hooks = tuple(replace(hook, how="hand") for hook in result.hooks)
    notes = (*result.notes, "edited by a person")
    amended = replace(result, commit=commit, hooks=hooks, notes=notes)
    plan = replace(plan, tip=commit, commits=(*plan.commits[:-1], commit))
    return replace(session.with_plan(plan), results=(*session.results[:-1], amended))


def _stage_edits(repo: Repo, tip: str) -> list[str]:
    """Stage the work tree and check it; return the paths that differ from `tip`."""
    repo.git("add", "--all", "--force", ".")
    said = repo.git("diff", "--cached", "--name-only", "-z", tip).text
    changed = [path for path in said.split("\0") if path]
    for path in changed:
        if (repo.path / path).is_file():
            check_edit(repo.path / path)
    return changed


def _by_hand(session: Session, plan: Plan, result: PatchResult, commit: str) -> Session:
    hooks = tuple(
        replace(hook, how=hook.how or "hand", status=Status.CONTENT_CHANGED)
        if hook.status.needs_human
        else hook
        for hook in result.hooks
    )
    notes = (*result.notes, f"was {result.status.label}; decided by a person")
    status = Status.CONTENT_CHANGED
    done = replace(result, status=status, hooks=hooks, notes=notes, commit=commit)
    return _committed(session, plan, done)


def skip(work: Work, session: Session) -> Session:
    """Leave the pending patch out of the series."""
    if session.pending is None:
        raise ToolError("--skip: no patch waits for a decision; run --status")
    result = session.pending.result
    plan = next(p for p in session.plans if p.package == result.package)
    Repo(work.repo(plan.package)).reset(plan.tip)
    notes = (*result.notes, "left out by a person")
    return _committed(session, plan, replace(result, notes=notes, dropped=True))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
