# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`vllm bench dp-balance`: the subcommands and how they report errors."""

import argparse
import sys
from collections.abc import Callable
from typing import NamedTuple

from . import calibrate, compare, recommend, report
from .errors import UsageError


class Subcommand(NamedTuple):
    """One verb of `vllm bench dp-balance`."""

    name: str
    help: str
    add_cli_args: Callable[[argparse.ArgumentParser], None]
    main: Callable[[argparse.Namespace], None]


SUBCOMMANDS = (
    Subcommand(
        "simulate",
        "Compare policies on a workload, in virtual time.",
        compare.add_cli_args,
        compare.main,
    ),
    Subcommand(
        "calibrate",
        "Fit the step time to a server's log or to a result of `vllm bench serve`.",
        calibrate.add_cli_args,
        calibrate.main,
    ),
    Subcommand(
        "recommend",
        "Name the policy for a workload, or say to leave balance scheduling off.",
        recommend.add_cli_args,
        recommend.main,
    ),
    Subcommand(
        "report",
        "Write a page that shows what each policy does to a workload.",
        report.add_cli_args,
        report.main,
    ),
)


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Adds the verbs."""
    subparsers = parser.add_subparsers(required=True, dest="dp_balance_type")
    for command in SUBCOMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.help,
            description=command.help,
            usage=f"vllm bench dp-balance {command.name} [options]",
        )
        command.add_cli_args(subparser)
        subparser.set_defaults(dp_balance_main=command.main)


def main(args: argparse.Namespace) -> None:
    """Runs the verb; what the user can fix is one line and exit status 2."""
    try:
        args.dp_balance_main(args)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
