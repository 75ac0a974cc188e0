"""The command `release`."""

from __future__ import annotations

import argparse

from balance_tools.paths import Paths
from balance_tools.release.make import SUMS, make_release, plan_release


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `release`."""
    summary = "Make and verify everything that a release has, in dist/release-VERSION."
    parser = subparsers.add_parser("release", help=summary, description=summary)
    parser.set_defaults(run=_run, parser=parser)
    parser.add_argument(
        "--trial",
        action="store_true",
        help="accept changes that are not committed, and a section of CHANGELOG.md "
        "that says Unreleased; the folder ends in -trial",
    )
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="with --trial: build only",
    )


def _run(args: argparse.Namespace) -> int:
    if args.no_verify and not args.trial:
        args.parser.error("--no-verify is for a trial: add --trial")
    release = plan_release(Paths.find(), trial=args.trial)
    folder = make_release(release, verify=not args.no_verify)
    print((folder / SUMS).read_text(encoding="utf-8"), end="")
    print(folder)
    return 0
