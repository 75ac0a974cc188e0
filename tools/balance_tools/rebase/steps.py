"""The steps of a rebase, from the sources to the new series in its place."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from balance_tools.drift.report import DriftReport, drift_report
from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.hooks.model import PatchResult, Status
from balance_tools.paths import Paths
from balance_tools.rebase import derive
from balance_tools.rebase.driver import make_trees, next_patch, rebase_patch
from balance_tools.rebase.finish import export, install_final
from balance_tools.rebase.fitting import Pin, fit, read_pin
from balance_tools.rebase.report import exit_code, write_report
from balance_tools.rebase.session import (
    DONE,
    PATCHES,
    TREES,
    Session,
    Work,
    save_former,
    work_root,
)
from balance_tools.rebase.sources import (
    NewUpstream,
    PristineTree,
    by_hand,
    by_version,
    pinned_trees,
    plans_between,
)
from balance_tools.rebase.tracing import with_culprits
from balance_tools.series.apply import Series, load_series, patched_steps
from balance_tools.upstream.lock import Lock, dump_lock, load_lock
from balance_tools.verify.verdict import Verdict
from balance_tools.verify.verify import ReleaseUnderTest, verify


def start(paths: Paths, args: argparse.Namespace) -> int:
    """Begin a rebase as the command line says, and do all that needs no person.

    Returns:
        The exit code.

    Raises:
        ToolError: the new upstream cannot be had, or the series or flags do not fit.
    """
    begun = time.monotonic()
    lock = load_lock(paths.lock)
    series = {name: load_series(paths.patches(name)) for name in lock.packages}
    _check_names(series, args.stop_after)
    new = _new_upstream(paths, lock, args)
    old = pinned_trees(paths, lock)
    session = _new_session(new, old, args).spent("sources", time.monotonic() - begun)
    work = _empty_folder(work_root(paths) / _folder(new, args.dry_run_))
    if broken := _broken(series, old):
        return _refuse(work, session, broken)
    if not session.dry_run:
        save_former(paths, work, list(lock.packages))
    return advance(paths, work, session, args)


def advance(
    paths: Paths, work: Work, session: Session, args: argparse.Namespace
) -> int:
    """Do every step that is left, in this order; stop where a person must decide.

    Returns:
        The exit code.
    """
    work.save(session)
    series = _former_series(paths, work, session)
    if session.stage == TREES:
        session = make_trees(work, session, series)
        work.save(session)
    if session.stage == PATCHES:
        session = _place_patches(work, session, series, args.stop_after)
        if args.upstream_git:
            clone = args.upstream_git
            session = with_culprits(work, session, series["vllm"], clone)
            work.save(session)
        if session.pending or session.stopped:
            return _stop(work, session)
        session = _export(work, session, series)
    with ThreadPoolExecutor(1) as beside:  # the type checker, on the second processor
        pin = beside.submit(_read_pin, paths, work, session)
        session, drift = _compare(work, session, series, args.drift)
        session, fits = _check_fit(pin, work, session, args.upstream_git)
    if fits.needs_human:
        return _misfit(work, session, drift, fits)
    wanted = args.verify and exit_code(session) == 0
    verdict = verify_session(paths, work, session, args) if wanted else None
    return _put_in_place(paths, work, session, drift, verdict)


def _new_upstream(paths: Paths, lock: Lock, args: argparse.Namespace) -> NewUpstream:
    """Find what the command line names."""
    if args.sdist or args.ascend_sdist:
        new = by_hand(paths, lock, args.version, args.sdist, args.ascend_sdist)
    elif args.version:
        new = by_version(paths, lock, args.version, args.ascend)
    else:
        raise ToolError("version: expected a release, such as 0.30.0; see --help")
    if args.verify and new.lock is None:
        raise ToolError(
            "--verify: expected a release or an archive as the new upstream, found a "
            "folder, which no wheel can be built from; give --sdist an archive"
        )
    return new


def _new_session(
    new: NewUpstream, old: dict[str, PristineTree], args: argparse.Namespace
) -> Session:
    return Session(
        target=new.name,
        stage=TREES,
        plans=plans_between(old, new.trees),
        lock=dump_lock(new.lock) if new.lock else "",
        dry_run=args.dry_run_,
        line=args.line or "",
    )


def _folder(new: NewUpstream, dry_run: bool) -> str:
    if not new.name.replace(".", "").replace("-", "").replace("_", "").isalnum():
        raise ToolError(
            f"version: expected letters, digits, dots and hyphens, found {new.name!r}"
        )
    return new.name + (".dry-run" if dry_run else "")


def _empty_folder(folder: Path) -> Work:
    remove_tree(folder)
    folder.mkdir(parents=True)
    return Work(folder)


def _broken(
    series: dict[str, Series], trees: dict[str, PristineTree]
) -> PatchResult | None:
    """Return the first patch that does not fit the release it was made for."""
    for package, one in series.items():
        fits = 0
        try:
            for _ in patched_steps(one, trees[package].tree):
                fits += 1
        except ToolError as error:
            name = one.patches[fits].name
            return PatchResult(package, name, Status.BROKEN, notes=(str(error),))
    return None


def _refuse(work: Work, session: Session, broken: PatchResult) -> int:
    session = replace(session, stage=DONE, results=(broken,))
    work.save(session)
    print(f"error: {broken.notes[0]}", file=sys.stderr)
    print(f"{write_report(work.path, session)}: written")
    return exit_code(session)


def _check_names(series: dict[str, Series], name: str | None) -> None:
    known = [patch.name for one in series.values() for patch in one.patches]
    if name is not None and name not in known:
        raise ToolError(
            f"--stop-after: expected one of {', '.join(known)}, found {name!r}"
        )


def _former_series(paths: Paths, work: Work, session: Session) -> dict[str, Series]:
    """Load the series that is rebased; what is in its place may be new already."""
    names = [plan.package for plan in session.plans]
    if session.dry_run:
        return {name: load_series(paths.patches(name)) for name in names}
    return {name: load_series(work.former / name) for name in names}


def _place_patches(
    work: Work, session: Session, series: dict[str, Series], stop_after: str | None
) -> Session:
    """Rebase patch by patch, until one waits for a person or is to be looked at."""
    while following := next_patch(session, series):
        plan, patch = following
        session = rebase_patch(work, session, plan, patch)
        if session.pending is None and patch.name == stop_after:
            session = replace(session, stopped=True)
        work.save(session)
        if session.pending or session.stopped:
            break
    return session


def _export(work: Work, session: Session, series: dict[str, Series]) -> Session:
    begun = time.monotonic()
    session = export(work, session, series)
    return session.spent("export and proof", time.monotonic() - begun)


def _compare(
    work: Work, session: Session, series: dict[str, Series], with_copies: bool
) -> tuple[Session, DriftReport]:
    """Look for what changed around the series; from here on it can be installed."""
    begun = time.monotonic()
    labels = ", ".join(plan.new_label for plan in session.plans)
    print(f"comparing what the series need with {labels}", file=sys.stderr)
    trees = {p.package: (Path(p.old_tree), Path(p.new_tree)) for p in session.plans}
    drift = drift_report(trees, series, with_copies)
    session = session.spent("drift", time.monotonic() - begun)
    if not session.dry_run and session.lock:
        work.save(session)
    return session, drift


def _read_pin(paths: Paths, work: Work, session: Session) -> Pin | None:
    """Read what our files expect; not asked of a dry run that got stuck."""
    if exit_code(session) != 0:
        return None
    former = work.former / paths.lock.name  # of the pin that the rebase began with
    return read_pin(paths, load_lock(former if former.is_file() else paths.lock))


def _check_fit(
    pin: Future[Pin | None], work: Work, session: Session, clone: Path | None
) -> tuple[Session, Status]:
    """Hold our files against the release; not asked of a dry run that got stuck."""
    if exit_code(session) != 0:
        return session, Status.UNTOUCHED
    begun = time.monotonic()
    fits = fit(pin.result(), work, session, clone)
    return session.spent("contract", time.monotonic() - begun), fits


def _misfit(work: Work, session: Session, drift: DriftReport, fits: Status) -> int:
    """Stop before anything is replaced: the hooks have places, and will not work."""
    report = write_report(work.path, session, drift)
    text = (work.path / "findings.txt").read_text()
    with report.open("a", encoding="utf-8") as file:
        file.write(f"\n## What does not fit: {fits.label}\n\n")
        file.write("".join(f"- {line}\n" for line in text.splitlines()))
    print(
        f"{report}: {fits.label}: {len(text.splitlines())} findings; correct our files "
        "and --continue, or --abort, correct the Relies-On lines and begin again; "
        "nothing is replaced",
        file=sys.stderr,
    )
    return fits.exit_code


def verify_session(
    paths: Paths, work: Work, session: Session, args: argparse.Namespace
) -> Verdict:
    """Verify the series that lies in the work folder.

    Raises:
        ToolError: a test speaks against it.
    """
    plan = next(plan for plan in session.plans if plan.package == "vllm")
    release = ReleaseUnderTest(
        name=session.target,
        label=plan.new_label,
        lock=session.lock,
        series=work.final / "patches",
        tree=Path(plan.new_tree),
    )
    return verify(paths, release, args.verify_python, args.engine_tests.split())


def _stop(work: Work, session: Session) -> int:
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


def _put_in_place(
    paths: Paths,
    work: Work,
    session: Session,
    drift: DriftReport,
    verdict: Verdict | None,
) -> int:
    """Put the new series where it belongs, and write the last report."""
    said = _install(paths, work, session)
    session = replace(session, stage=DONE)
    report = write_report(work.path, session, drift, verdict)
    work.save(session)
    print(f"{said}{report}: written")
    return exit_code(session)


def _install(paths: Paths, work: Work, session: Session) -> str:
    """Install the new series; return a line that says where, or ""."""
    if session.dry_run or not session.lock:
        for plan in session.plans:
            remove_tree(work.repo(plan.package))
        if session.dry_run:
            return ""
        return (
            f"{work.final}: the new series; the new upstream is a folder, which no "
            "lock can name, so patches/ and upstream.toml are as before\n"
        )
    if session.line:
        folder = derive.write(paths, session.line, session, work).folder
        return f"{folder}: written; --checkout-line {session.line} makes its sources\n"
    install_final(paths, work, session)
    return f"{paths.lock.name} and patches/ are now for {session.target}\n"
