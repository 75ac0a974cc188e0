"""The command `rebase`, behind tools/rebase.sh."""

from __future__ import annotations

import argparse
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import disk_errors, exclusive
from balance_tools.hooks.model import worst
from balance_tools.paths import Paths
from balance_tools.rebase.derive import derive, renew
from balance_tools.rebase.driver import accept, skip
from balance_tools.rebase.finish import restore_former, throw_away
from balance_tools.rebase.report import exit_code, markdown
from balance_tools.rebase.scan import parse_range, releases, scan
from balance_tools.rebase.scan_picture import scan_picture
from balance_tools.rebase.scan_rows import write_scan
from balance_tools.rebase.scan_run import run_rows
from balance_tools.rebase.session import Work, in_progress, work_root
from balance_tools.rebase.steps import advance, start, verify_session
from balance_tools.rebase.supported_release import SupportedRelease
from balance_tools.upstream.lock import load_lock
from balance_tools.vendoring.checkout import make_checkout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `rebase`."""
    add = parser.add_argument
    add("version", nargs="?", help="release of vllm; or a name for --sdist")
    add("--ascend", metavar="VERSION", help="release of vllm-ascend")
    for flag, name in (("--sdist", "vllm"), ("--ascend-sdist", "vllm-ascend")):
        add(flag, type=Path, metavar="FILE|DIR", help=f"local source of {name}")
    add("--stop-after", metavar="PATCH", help="stop after it; --continue goes on")
    add("--root", type=Path, help="repository to work on (default: this one)")
    add("--scan", metavar="A..B", help="try every final release in a range")
    text = "with --scan: build each release that fits, and serve with each policy"
    add("--run", dest="run_", action="store_true", help=text)
    text = "with --run: take its newest release if the index has not what is required"
    add("--newest", action="append", default=[], metavar="PROJECT", help=text)
    add("--drift", action="store_true", help="compare vllm_ascend's copies of vLLM too")
    text = "clone of upstream, to say which commit took a name or a place away"
    add("--upstream-git", type=Path, metavar="PATH", help=text)
    add("--line", metavar="NAME", help="write a supported release, lines/NAME")
    add("--checkout-line", metavar="NAME", help="make the source root build/lines/NAME")
    add("--renew-line", metavar="NAME", help="write the hashes of lines/NAME anew")
    add("--verify", action="store_true", help="build the wheel and run the tests, too")
    text = "interpreter that has the new release's requirements already"
    add("--verify-python", type=Path, metavar="PYTHON", help=text)
    text = 'engine tests of --verify (default: all); "" leaves them out'
    add("--engine-tests", default="tests/engine", metavar="FILES", help=text)
    what = parser.add_mutually_exclusive_group()
    for flag, text in (
        ("continue", "go on after an edit, a stop or a crash"),
        ("skip", "leave the patch that waits out of the series, and go on"),
        ("abort", "go back to the state before the rebase"),
        ("status", "say what is done and what waits"),
        ("dry-run", "report every patch; change and keep nothing else"),
    ):
        name = f"{flag.replace('-', '_')}_"
        what.add_argument(f"--{flag}", dest=name, action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Run `rebase`."""
    paths = Paths(args.root.resolve()) if args.root else Paths.find()
    root = work_root(paths)
    with exclusive(root / ".lock"), disk_errors(root):
        if args.checkout_line:
            return _checkout(paths, args)
        if args.renew_line:
            return _renew(paths, args.renew_line)
        if args.scan:
            return _scan(paths, args)
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
            return advance(paths, work, session, args)
        if work is not None and not args.dry_run_:
            raise ToolError(
                f"{work.path}: expected no rebase in progress, found the one to "
                f"{work.load().target}; finish it with --continue or drop it with "
                "--abort"
            )
        return start(paths, args)


def _checkout(paths: Paths, args: argparse.Namespace) -> int:
    release = SupportedRelease.find(paths, args.checkout_line)
    work, session = derive(paths, release)
    series: dict[str, Path | None] = {
        plan.package: work.final_series(plan.package) for plan in session.plans
    }
    folder = paths.build / "lines" / release.name
    other = make_checkout(paths, folder, release.lock_text, series)
    print(f"{other.root}: a source root for {release.name}; make wheel works there")
    if args.verify:
        verdict = verify_session(paths, work, session, args)
        print(verdict.markdown(), end="")
    return 0


def _renew(paths: Paths, name: str) -> int:
    release = SupportedRelease.find(paths, name)
    for change in renew(paths, release) or [f"lines/{name}: nothing to renew"]:
        print(change)
    return 0


def _scan(paths: Paths, args: argparse.Namespace) -> int:
    lock = load_lock(paths.lock)
    artifacts = releases(paths, *parse_range(args.scan))
    folder = work_root(paths) / "scan"
    folder.mkdir(exist_ok=True)
    rows = scan(paths, lock, artifacts)
    if args.run_:
        rows = run_rows(paths, lock, artifacts, rows, args.newest)
    pin = lock.vllm.version
    report = write_scan(folder, rows, pin, scan_picture(rows, pin))
    print(report.read_text(), end="")
    print(f"{report}: written, and {folder / 'scan.svg'}")
    return worst([row.status for row in rows]).exit_code


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
