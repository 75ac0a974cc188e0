# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`vllm bench dp-balance`: the subcommands and how they report errors."""

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial

from . import recommend, simulate
from .errors import UsageError
from .trial import command as trial

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
SUBCOMMANDS = {
    "simulate": (simulate, "Compare policies on a workload, in virtual time."),
    "recommend": (
        recommend,
        "Name the policy for a workload, or say to leave balance scheduling off.",
    ),
    "trial": (
        trial,
        "Compare policies on your hardware: serve in turn, load, and report.",
    ),
}


def add_cli_args(parser: argparse.ArgumentParser, words: Sequence[str] = ()) -> None:
    """Adds the verbs.

    Args:
        parser: that of `dp-balance`.
        words: what no parser of vLLM may see, for the verb that reads it itself.
    """
    subparsers = parser.add_subparsers(required=True, dest="dp_balance_type")
    for name, (module, description) in SUBCOMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=description,
            description=description,
            usage=f"vllm bench dp-balance {name} [options]",
        )
        module.add_cli_args(subparser)
        subparser.set_defaults(dp_balance_main=module.main, words=words)
        # vLLM's own names only groups, of which there are none here.
        all_of_it = partial(argparse.ArgumentParser.format_help, subparser)
        setattr(subparser, "format_help", all_of_it)  # noqa: B010


def main(args: argparse.Namespace) -> None:
    """Runs the verb; what the user can fix is one line and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not know all of ±→…
            stream.reconfigure(errors="backslashreplace")
    try:
        args.dp_balance_main(args)
        sys.stdout.flush()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        is_pipe = isinstance(error, BrokenPipeError)
        if not (is_pipe or error.filename or error.errno in FULL):
            raise
        # What is left of the output has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if is_pipe:  # its reader has seen enough
            sys.exit(128 + signal.SIGPIPE)
        where = error.filename or "output"
        print(f"error: {where}: {error.strerror}.", file=sys.stderr)
        sys.exit(2)
