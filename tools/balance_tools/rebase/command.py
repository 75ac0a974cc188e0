"""The command `rebase`, behind tools/rebase.sh."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import disk_errors, exclusive, remove_tree
from balance_tools.lock import dump_lock, load_lock
from balance_tools.paths import Paths
from balance_tools.pristine import ensure_pristine
from balance_tools.rebase.checkout import make_checkout
from balance_tools.rebase.drift import drift_report
from balance_tools.rebase.driver import (
    accept,
    make_trees,
    next_patch,
    rebase_patch,
    skip,
)
from balance_tools.rebase.finish import (
    export,
    install_final,
    restore_former,
    throw_away,
)
from balance_tools.rebase.lines import Line, derive
from balance_tools.rebase.model import PatchResult, Status
from balance_tools.rebase.picture import scan_picture
from balance_tools.rebase.report import exit_code, markdown, write_report
from balance_tools.rebase.scan import parse_range, releases, scan, write_scan
from balance_tools.rebase.session import (
    DONE,
    FINISH,
    PATCHES,
    TREES,
    Plan,
    Session,
    Work,
    in_progress,
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
from balance_tools.rebase.verify import verify
from balance_tools.series import Series, load_series, patched_steps


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `rebase`."""
    text = "move the patch series to another upstream release"
    parser = subparsers.add_parser("rebase", help=text, description=text)
    parser.add_argument(
        "version",
        nargs="?",
        help="release of vllm, such as 0.30.0; or a name for --sdist",
    )
    parser.add_argument("--ascend", metavar="VERSION", help="release of vllm-ascend")
    parser.add_argument(
        "--sdist", type=Path, metavar="FILE|DIR", help="local source of vllm"
    )
    parser.add_argument(
        "--ascend-sdist",
        type=Path,
        metavar="FILE|DIR",
        help="local source of vllm-ascend",
    )
    parser.add_argument(
        "--stop-after",
        metavar="PATCH",
        help="stop after this patch; --continue goes on",
    )
    parser.add_argument(
        "--root", type=Path, help="repository to work on (default: this one)"
    )
    parser.add_argument(
        "--scan",
        metavar="A..B",
        help="try the series on every final release in a range",
    )
    parser.add_argument(
        "--drift", action="store_true", help="also compare vllm_ascend's copies of vLLM"
    )
    parser.add_argument(
        "--line", metavar="NAME", help="write a further line, lines/NAME, not the pin"
    )
    parser.add_argument(
        "--checkout-line", metavar="NAME", help="make the source root build/lines/NAME"
    )
    parser.add_argument(
        "--verify", action="store_true", help="build the wheel and run the tests, too"
    )
    parser.add_argument(
        "--verify-python",
        type=Path,
        metavar="PYTHON",
        help="interpreter that has the new release's requirements already",
    )
    parser.add_argument(
        "--engine-tests",
        default="tests/engine",
        metavar="ARGUMENTS",
        help='what --verify gives to pytest; "" leaves our engine tests out',
    )
    what = parser.add_mutually_exclusive_group()
    for flag, text in (
        ("continue", "go on after an edit, a stop or a crash"),
        ("skip", "leave the patch that waits out of the series, and go on"),
        ("abort", "go back to the state before the rebase"),
        ("status", "say what is done and what waits"),
        ("dry-run", "report every patch; change and keep nothing else"),
    ):
        what.add_argument(
            f"--{flag}",
            dest=flag.replace("-", "_") + "_",
            action="store_true",
            help=text,
        )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    paths = Paths(args.root.resolve()) if args.root else Paths.find()
    root = work_root(paths)
    with exclusive(root / ".lock"), disk_errors(root):
        if args.checkout_line:
            return _checkout(paths, args.checkout_line, args)
        if args.scan:
            return _scan(paths, args.scan)
        work = in_progress(paths)
        if args.status_:
            return _status(paths, work)
        if args.continue_ or args.skip_ or args.abort_:
            if work is None:
                raise ToolError(
                    f"{root}: expected a rebase in progress, found none; start one "
                    "with tools/rebase.sh VERSION"
                )
            if args.abort_:
                return _abort(paths, work)
            session = work.load()
            session = skip(work, session) if args.skip_ else accept(work, session)
            work.save(session)
            return _advance(paths, work, session, args)
        if work is not None and not args.dry_run_:
            raise ToolError(
                f"{work.path}: expected no rebase in progress, found the one to "
                f"{work.load().target}; finish it with --continue or drop it with "
                "--abort"
            )
        return _start(paths, args)


def _checkout(paths: Paths, name: str, args: argparse.Namespace) -> int:
    line = Line.find(paths, name)
    work, session = derive(paths, line)
    series: dict[str, Path | None] = {
        plan.package: work.final / plan.package for plan in session.plans
    }
    other = make_checkout(paths, paths.build / "lines" / name, line.lock_text, series)
    if args.verify:
        engine = args.engine_tests.split()
        print(verify(paths, work, session, args.verify_python, engine), end="")
    print(f"{other.root}: a source root for the line {name}; make wheel works there")
    return 0


def _scan(paths: Paths, text: str) -> int:
    lock = load_lock(paths.lock)
    artifacts = releases(paths, *parse_range(text))
    folder = work_root(paths) / "scan"
    folder.mkdir(exist_ok=True)
    base = ensure_pristine(lock.vllm, paths)
    rows = scan(paths, lock, artifacts, base)
    pin = lock.vllm.version
    report = write_scan(folder, rows, pin, scan_picture(rows, pin))
    print(report.read_text(), end="")
    print(f"{report}: written, and {folder / 'scan.svg'}")
    return 0


def _status(paths: Paths, work: Work | None) -> int:
    if work is None:
        print("no rebase in progress")
        return 0
    session = work.load()
    print(markdown(session), end="")
    return exit_code(session)


def _abort(paths: Paths, work: Work) -> int:
    session = work.load()
    restore_former(paths, work, session)
    throw_away(work)
    print(f"rebase to {session.target} dropped; series and lock are as before")
    return 0


def _start(paths: Paths, args: argparse.Namespace) -> int:
    lock = load_lock(paths.lock)
    start = time.monotonic()
    if args.sdist or args.ascend_sdist:
        target = by_hand(paths, lock, args.version, args.sdist, args.ascend_sdist)
    elif args.version:
        target = by_version(paths, lock, args.version, args.ascend)
    else:
        raise ToolError("version: expected a release, such as 0.30.0; see --help")
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
    ).spent("sources", time.monotonic() - start)
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
    return _advance(paths, work, session, args)


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


def _advance(
    paths: Paths, work: Work, session: Session, args: argparse.Namespace
) -> int:
    """Do every step that is left; stop where a person must decide."""
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
        start = time.monotonic()
        session = export(work, session, series).spent(
            "export and proof", time.monotonic() - start
        )
    start = time.monotonic()
    _say_drift(session)
    drift = drift_report(session.plans, series, args.drift)
    session = session.spent("drift", time.monotonic() - start)
    if args.verify and session.lock:
        start = time.monotonic()
        engine = args.engine_tests.split()
        drift += verify(paths, work, session, args.verify_python, engine)
        session = session.spent("verify", time.monotonic() - start)
    if not session.dry_run and session.lock:
        work.save(session)
    return _finish(paths, work, session, drift)


def _say_drift(session: Session) -> None:
    labels = ", ".join(plan.new_label for plan in session.plans)
    print(f"comparing what the series need with {labels}", file=sys.stderr)


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


def _finish(paths: Paths, work: Work, session: Session, drift: str) -> int:
    if session.dry_run or not session.lock:
        write_report(work.path, session, drift)
        for plan in session.plans:
            remove_tree(work.repo(plan.package))
        work.save(replace(session, stage=DONE))
        if not session.dry_run:
            print(
                f"{work.final}: the new series; the new upstream is a folder, which no "
                "lock can name, so patches/ and upstream.toml are as before"
            )
    elif session.line:
        line = Line.write(paths, session.line, session, work.final)
        session = replace(session, stage=DONE)
        write_report(work.path, session, drift)
        work.save(session)
        print(
            f"{line.folder}: written; --checkout-line {session.line} makes its sources"
        )
    else:
        install_final(paths, work, session)
        session = replace(session, stage=DONE)
        write_report(work.path, session, drift)
        work.save(session)
        print(f"{paths.lock.name} and patches/ are now for {session.target}")
    print(f"{work.path / 'report.md'}: written")
    return exit_code(session)
