"""Place the patches of a series on new upstream, until a person must decide."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from balance_tools.errors import ToolError
from balance_tools.hooks.model import FileVerdict, Labels, PatchResult, Status, worst
from balance_tools.hooks.outcome import Sides, check_edit, decide
from balance_tools.rebase.journal import Plan, Session, Work
from balance_tools.rebase.repo import NEW, Repo, build_repo, patch_ref
from balance_tools.series.apply import Series, apply_to_bytes
from balance_tools.series.patchfile import Patch

Own = Mapping[tuple[str, str], Patch]
"""By package and name, patches of the target itself that are taken as they are."""


def place_all(
    work: Work,
    session: Session,
    series: Mapping[str, Series],
    own: Own | None = None,
    quiet: bool = False,
) -> Session:
    """Rebase patch by patch onto new upstream, as far as no person is needed.

    Each is placed by `git rebase --onto`, if the syntax tree proves the merge; else
    its hooks are placed by syntax; else it waits. A dry run goes on behind it.

    Raises:
        ToolError: a series does not apply to the tree that it was made for, or a patch
            of `own` does not apply.
    """
    session = _make_trees(work, session, series, quiet)
    work.save(session)
    while session.pending is None and (following := _next(session, series)):
        plan, patch = following
        mine = (own or {}).get((plan.package, patch.name))
        if mine is not None:
            session = _take(work, session, plan, mine)
        else:
            session = _place(work, session, plan, patch, quiet)
        work.save(session)
    return session


def _make_trees(
    work: Work, session: Session, series: Mapping[str, Series], quiet: bool
) -> Session:
    """Build the two-tree repository of every package that has none yet."""
    for plan in session.plans:
        if plan.tip:
            continue
        path = work.repo(plan.package)
        labels = (plan.old_label, plan.new_label)
        if not path.exists():
            if not quiet:
                _say(f"{plan.package}: {labels[0]} and {labels[1]} into {path}")
            trees = (plan.old_tree, plan.new_tree)
            build_repo(path, plan.package, *trees, series[plan.package], labels)
        session = session.with_plan(replace(plan, tip=Repo(path).commit_of(NEW)))
    return session


def _next(session: Session, series: Mapping[str, Series]) -> tuple[Plan, Patch] | None:
    for plan in session.plans:
        patches = series[plan.package].patches
        if len(plan.commits) < len(patches):
            return plan, patches[len(plan.commits)]
    return None


def _place(
    work: Work, session: Session, plan: Plan, patch: Patch, quiet: bool
) -> Session:
    """Rebase one patch onto the tip; it is committed, or it waits for a person."""
    repo = Repo(work.repo(plan.package))
    verdicts, git_commit = _verdicts(repo, plan, patch)
    status = worst([verdict.status for verdict in verdicts])
    every = {verdict.status for verdict in verdicts}
    if Status.ALREADY_UPSTREAM in every and len(every) > 1 and not status.needs_human:
        status = Status.CONFLICT
    hooks = tuple(hook for verdict in verdicts for hook in verdict.hooks)
    notes = tuple(note for verdict in verdicts for note in verdict.notes)
    result = PatchResult(plan.package, patch.name, status, hooks, notes)
    if not status.needs_human or session.dry_run:
        if git_commit and all(hook.how == "git" for hook in hooks):
            commit = git_commit
        else:
            repo.reset(plan.tip)
            repo.write({verdict.path: verdict.partial for verdict in verdicts})
            commit = repo.commit(patch.name)
        session = _committed(session, plan, replace(result, commit=commit))
    else:
        repo.reset(plan.tip)
        files = _leave_for_person(repo, verdicts)
        session = replace(session, pending=result, files=files)
    if not quiet:
        found = status.label if status.needs_human else "placed"
        _say(f"{plan.package}: {patch.name}: {found}")
    return session


def _verdicts(repo: Repo, plan: Plan, patch: Patch) -> tuple[list[FileVerdict], str]:
    """Let git rebase the patch and judge every file; "" for a commit that is none."""
    before = repo.commit_of(patch_ref(len(plan.commits)))
    after = repo.commit_of(patch_ref(len(plan.commits) + 1))
    repo.reset(plan.tip)
    run = repo.git("rebase", "--onto", plan.tip, before, after, check=False)
    unmerged = set(repo.unmerged())
    if run.status and not unmerged:
        raise ToolError(
            f"{repo.path}: git rebase failed on {patch.name}: {run.tail}; run "
            "tools/rebase.sh abort"
        )
    head = repo.commit_of("HEAD")
    paths = repo.python_files(plan.tip)

    def read(path: str) -> bytes | None:
        return repo.read(plan.tip, path)

    verdicts = []
    for file in patch.files:
        merged = repo.path / file.path
        sides = Sides(
            base=repo.read(before, file.path) or b"",
            patched=repo.read(after, file.path) or b"",
            upstream=read(file.path),
            merged=merged.read_bytes() if merged.is_file() else None,
            clean=file.path not in unmerged,
            link=repo.link(plan.tip, file.path),
            labels=Labels(plan.new_label, plan.old_label, patch.name),
        )
        verdicts.append(decide(file, sides, paths, read))
    return verdicts, "" if run.status or head == plan.tip else head


def _take(work: Work, session: Session, plan: Plan, own: Patch) -> Session:
    """Apply a patch of the target itself, exactly, and commit it."""
    repo = Repo(work.repo(plan.package))
    repo.reset(plan.tip)
    repo.write(
        {
            file.path: apply_to_bytes(
                file, repo.read(plan.tip, file.path), f"{own.name}: {file.path}"
            )
            for file in own.files
        }
    )
    status, commit = Status.CONTENT_CHANGED, repo.commit(own.name)
    result = PatchResult(plan.package, own.name, status, commit=commit)
    return _committed(session, plan, result)


def _committed(session: Session, plan: Plan, result: PatchResult) -> Session:
    tip = result.commit or plan.tip
    plan = replace(plan, tip=tip, commits=(*plan.commits, result.commit))
    results = (*session.results, result)
    return replace(session.with_plan(plan), results=results, pending=None, files=())


def _leave_for_person(repo: Repo, verdicts: list[FileVerdict]) -> tuple[str, ...]:
    """Write what is placed and the conflict files; return the latter."""
    files = []
    for verdict in verdicts:
        path = verdict.target or verdict.path
        if verdict.content is not None:
            file = repo.path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.is_symlink():
                file.write_bytes(verdict.content)
        if verdict.status.needs_human:
            files.append(path)
    return tuple(files)


def accept(work: Work, session: Session) -> Session:
    """Take what a person made of the patch that waits, if one does.

    Raises:
        ToolError: conflict markers are left, a file is not Python, or nothing changed.
    """
    if session.pending is None:
        return session
    result = session.pending
    plan = session.plan(result.package)
    repo = Repo(work.repo(plan.package))
    commit = repo.commit_of("HEAD")
    if commit == plan.tip:  # not killed between the commit and the journal
        if not _stage_edits(repo, plan.tip):
            raise ToolError(
                f"{repo.path}: nothing is changed for {result.name}; edit "
                f"{', '.join(session.files) or 'the files'}, or leave the "
                "patch out with tools/rebase.sh skip"
            )
        commit = repo.commit(result.name)
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


def _stage_edits(repo: Repo, tip: str) -> list[str]:
    """Stage the work tree and check it; return the paths that differ from `tip`."""
    repo.git("add", "--all", "--force", ".")
    changed = repo.changed("--cached", tip)
    for path in changed:
        if (repo.path / path).is_file():
            check_edit(repo.path / path)
    return changed


def skip(work: Work, session: Session) -> Session:
    """Leave the pending patch out of the series."""
    if session.pending is None:
        raise ToolError(
            "skip: no patch waits for a decision; run tools/rebase.sh status"
        )
    result = session.pending
    plan = session.plan(result.package)
    Repo(work.repo(plan.package)).reset(plan.tip)
    notes = (*result.notes, "left out by a person")
    return _committed(session, plan, replace(result, notes=notes, dropped=True))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
