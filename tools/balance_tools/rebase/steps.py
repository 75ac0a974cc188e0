"""The steps of a rebase, from the sources to the new series in its place."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from balance_tools.drift.report import DriftReport, drift_report
from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.paths import Paths
from balance_tools.rebase import derive
from balance_tools.rebase.driver import make_trees, next_patch, rebase_patch
from balance_tools.rebase.finish import export, install_final
from balance_tools.rebase.model import PatchResult, Status
from balance_tools.rebase.report import exit_code, write_report
from balance_tools.rebase.session import (
    DONE,
    FINISH,
    PATCHES,
    TREES,
    Plan,
    Session,
    Work,
    save_former,
    work_root,
)
from balance_tools.rebase.sources import (
    Source,
    Target,
    by_hand,
    by_version,
    pinned_sources,
)
from balance_tools.series.apply import Series, load_series, patched_steps
from balance_tools.upstream.lock import dump_lock, load_lock
from balance_tools.verify.verdict import Verdict
from balance_tools.verify.verify import Subject, verify


def start(paths: Paths, args: argparse.Namespace) -> int:
    """Begin a rebase as the command line says, and do all that needs no person.

    Returns:
        The exit code.

    Raises:
        ToolError: the new upstream cannot be had, or the series or flags do not fit.
    """
    lock = load_lock(paths.lock)
    begun = time.monotonic()
    if args.sdist or args.ascend_sdist:
        target = by_hand(paths, lock, args.version, args.sdist, args.ascend_sdist)
    elif args.version:
        target = by_version(paths, lock, args.version, args.ascend)
    else:
        raise ToolError("version: expected a release, such as 0.30.0; see --help")
    if args.verify and target.lock is None:
        raise ToolError(
            "--verify: expected a release or an archive as the new upstream, found a "
            "folder, which no wheel can be built from; give --sdist an archive"
        )
    old = pinned_sources(paths, lock)
    series = {name: load_series(paths.patches(name)) for name in lock.packages}
    _check_names(series, args.stop_after)
    plans = tuple(
        Plan(
            package=name,
            old_tree=str(old[name].tree),
            new_tree=str(target.sources[name].tree),
            old_label=old[name].label,
            new_label=target.sources[name].label,
        )
        for name in lock.packages
    )
    session = Session(
        target=target.name,
        stage=TREES,
        plans=plans,
        lock=dump_lock(target.lock) if target.lock else "",
        dry_run=args.dry_run_,
        line=args.line or "",
    ).spent("sources", time.monotonic() - begun)
    work = Work(work_root(paths) / _folder(target, args.dry_run_))
    remove_tree(work.path)
    work.path.mkdir(parents=True)
    if broken := _broken(series, old):
        session = replace(session, stage=DONE, results=(broken,))
        work.save(session)
        print(f"error: {broken.notes[0]}", file=sys.stderr)
        print(f"{write_report(work.path, session)}: written")
        return exit_code(session)
    if not args.dry_run_:
        save_former(paths, work, list(lock.packages))
    work.save(session)
    return advance(paths, work, session, args)


def _folder(target: Target, dry_run: bool) -> str:
    if not target.name.replace(".", "").replace("-", "").replace("_", "").isalnum():
        raise ToolError(
            f"version: expected letters, digits, dots and hyphens, found "
            f"{target.name!r}"
        )
    return target.name + (".dry-run" if dry_run else "")


def _broken(
    series: dict[str, Series], sources: dict[str, Source]
) -> PatchResult | None:
    """Return the first patch that does not fit the release it was made for."""
    for package, one in series.items():
        fits = 0
        try:
            for _ in patched_steps(one, sources[package].tree):
                fits += 1
        except ToolError as error:
            name = one.patches[fits].name
            return PatchResult(package, name, Status.BROKEN, notes=(str(error),))
    return None


def _check_names(series: dict[str, Series], name: str | None) -> None:
    known = [patch.name for one in series.values() for patch in one.patches]
    if name is not None and name not in known:
        raise ToolError(
            f"--stop-after: expected one of {', '.join(known)}, found {name!r}"
        )


def advance(
    paths: Paths, work: Work, session: Session, args: argparse.Namespace
) -> int:
    """Do every step that is left; stop where a person must decide.

    Returns:
        The exit code.
    """
    series = {
        plan.package: load_series(
            paths.patches(plan.package)
            if session.dry_run
            else work.former / plan.package
        )
        for plan in session.plans
    }
    if session.stage != FINISH:
        if session.stage == TREES:
            session = make_trees(work, session, series)
            work.save(session)
        while session.stage == PATCHES and (following := next_patch(session, series)):
            plan, patch = following
            session = rebase_patch(work, session, plan, patch)
            work.save(session)
            if session.pending or patch.name == args.stop_after:
                session = replace(session, stopped=session.pending is None)
                work.save(session)
                return _stopped(work, session)
        begun = time.monotonic()
        session = export(work, session, series).spent(
            "export and proof", time.monotonic() - begun
        )
    begun = time.monotonic()
    labels = ", ".join(plan.new_label for plan in session.plans)
    print(f"comparing what the series need with {labels}", file=sys.stderr)
    trees = {p.package: (Path(p.old_tree), Path(p.new_tree)) for p in session.plans}
    drift = drift_report(trees, series, args.drift)
    session = session.spent("drift", time.monotonic() - begun)
    if not session.dry_run and session.lock:
        work.save(session)
    verdict = None
    if args.verify and exit_code(session) == 0:
        verdict = verify_session(paths, work, session, args)
    return _finish(paths, work, session, drift, verdict)


def verify_session(
    paths: Paths, work: Work, session: Session, args: argparse.Namespace
) -> Verdict:
    """Verify the series that lies in the work folder.

    Raises:
        ToolError: a test speaks against it.
    """
    plan = next(plan for plan in session.plans if plan.package == "vllm")
    subject = Subject(
        name=session.target,
        label=plan.new_label,
        lock=session.lock,
        series=work.final,
        tree=Path(plan.new_tree),
    )
    return verify(paths, subject, args.verify_python, args.engine_tests.split())


def _stopped(work: Work, session: Session) -> int:
    report = write_report(work.path, session)
    if session.pending is None:
        folder = work.repo(session.results[-1].package)
        print(f"stopped as asked; edits in {folder} amend the patch")
        print("tools/rebase.sh --continue goes on")
        return 0
    result = session.pending.result
    print(f"{report}: {result.name}: {result.status.label}", file=sys.stderr)
    for note in (
        *result.notes,
        *(h.note for h in result.hooks if h.status.needs_human),
    ):
        print(f"  {note}", file=sys.stderr)
    folder = work.repo(result.package)
    for path in session.pending.files:
        print(f"  edit {folder / path}", file=sys.stderr)
    print("  then --continue; or --skip the patch; or --abort", file=sys.stderr)
    return exit_code(session)


def _finish(
    paths: Paths,
    work: Work,
    session: Session,
    drift: DriftReport,
    verdict: Verdict | None,
) -> int:
    if session.dry_run or not session.lock:
        write_report(work.path, session, drift, verdict)
        for plan in session.plans:
            remove_tree(work.repo(plan.package))
        work.save(replace(session, stage=DONE))
        if not session.dry_run:
            print(
                f"{work.final}: the new series; the new upstream is a folder, which no "
                "lock can name, so patches/ and upstream.toml are as before"
            )
    elif session.line:
        line = derive.write(paths, session.line, session, work.final)
        session = replace(session, stage=DONE)
        write_report(work.path, session, drift, verdict)
        work.save(session)
        print(
            f"{line.folder}: written; --checkout-line {session.line} makes its sources"
        )
    else:
        install_final(paths, work, session)
        session = replace(session, stage=DONE)
        write_report(work.path, session, drift, verdict)
        work.save(session)
        print(f"{paths.lock.name} and patches/ are now for {session.target}")
    print(f"{work.path / 'report.md'}: written")
    return exit_code(session)
