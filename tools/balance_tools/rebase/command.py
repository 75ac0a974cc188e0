"""The command `rebase`, behind tools/rebase.sh: one verb for each thing it does."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import exclusive, write_atomically
from balance_tools.hooks.model import worst
from balance_tools.paths import LOCK_NAME, Paths
from balance_tools.rebase.bump import bump
from balance_tools.rebase.line import derive, find_line
from balance_tools.rebase.scan import releases, scan, scan_markdown
from balance_tools.rebase.sources import by_archive, by_version
from balance_tools.upstream.lock import load_lock
from balance_tools.vendoring.checkout import make_checkout
from balance_tools.verify.verify import Candidate, verify

VERBS = {
    "bump": "Move the series to another release. tools/rebase.sh VERSION is short for "
    "it.",
    "line": "Make the sources of a line, a further release in lines/, below build/.",
    "verify": "Build the wheel, and run our engine tests and upstream's own tests.",
    "scan": "Try the series on every final release in a range; write scan.md.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.prog = "tools/rebase.sh"
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    add = {}
    for name, text in VERBS.items():
        verb = verbs.add_parser(name, help=text, description=text)
        verb.add_argument("--root", type=Path, help=argparse.SUPPRESS)
        add[name] = verb.add_argument
    add["bump"]("version", nargs="?", help="release of vllm, or --sdist")
    add["bump"]("--ascend", metavar="VERSION", help="release of vllm-ascend")
    for flag, name in (("--sdist", "vllm"), ("--ascend-sdist", "vllm-ascend")):
        text = f"local sdist of {name}, such as {name}-0.30.0.tar.gz"
        add["bump"](flag, type=Path, metavar="FILE", help=text)
    text = "write or renew lines/NAME, with its own patches; the pin stays"
    add["bump"]("--line", metavar="NAME", type=_name, help=text)
    text = "report every patch; change and keep nothing else"
    add["bump"]("--dry-run", action="store_true", help=text)
    add["line"]("name", help="folder below lines/")
    add["verify"]("name", nargs="?", help="line to verify (default: the pin)")
    add["scan"]("range", metavar="A..B", help="two versions, such as 0.23.0..0.33.0")


NAME = r"\w[\w.-]*"
"""The form of a release, and of the name of a folder below lines/."""


def _name(text: str) -> str:
    if not re.fullmatch(NAME, text):
        raise argparse.ArgumentTypeError(
            f"expected a name of letters, digits, dots and hyphens, found {text!r}"
        )
    return text


def run(args: argparse.Namespace) -> int:
    paths = Paths(args.root.resolve()) if args.root else Paths.find()
    functions = {"bump": _bump, "line": _line, "verify": _verify, "scan": _scan}
    with exclusive(paths.build / "rebase" / ".lock"):
        return functions[args.verb](paths, args)


def _bump(paths: Paths, args: argparse.Namespace) -> int:
    lock = load_lock(paths.lock)
    archives = args.sdist or args.ascend_sdist
    if archives and (args.version or args.ascend):
        raise ToolError(
            f"{archives}: expected archives or releases, found both; an archive's name "
            "says its release, and what is not given stays"
        )
    if archives:
        new = by_archive(paths, lock, args.sdist, args.ascend_sdist)
    elif args.version:
        new = by_version(lock, args.version, args.ascend)
    else:
        raise ToolError(
            "version: expected a release such as 0.30.0, found none; see "
            "tools/rebase.sh bump --help"
        )
    return bump(paths, new, args.dry_run, args.line or "")


def _line(paths: Paths, args: argparse.Namespace) -> int:
    line = find_line(paths, args.name)
    series, folder = derive(paths, line), paths.build / "lines" / line.name
    checkout = make_checkout(paths, folder, line.folder / LOCK_NAME, series)
    print(f"{checkout.root}: a source root for {line.name}; make wheel works there")
    return 0


def _verify(paths: Paths, args: argparse.Namespace) -> int:
    candidate = Candidate(paths, "pin", paths.lock, paths.root / "patches")
    if args.name:
        line = find_line(paths, args.name)
        candidate = Candidate(
            paths, line.name, line.folder / LOCK_NAME, derive(paths, line)
        )
    print(verify(candidate), end="")
    return 0


def _scan(paths: Paths, args: argparse.Namespace) -> int:
    rows = scan(paths, releases(args.range))
    report, text = paths.build / "rebase" / "scan.md", scan_markdown(paths, rows)
    write_atomically(report, text)
    print(f"{text}{report}: written")
    return worst(row.status for row in rows.values()).exit_code
