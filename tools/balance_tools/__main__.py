"""The command line: `python -m balance_tools <command>`."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from balance_tools.errors import ToolError

# vllm_balance, whose hashes the tools share with the wheel, lies beside tools/. Not by
# PYTHONPATH: programs that the tools start must not find the vllm that lies there too.
sys.path.append(str(Path(__file__).resolve().parents[2]))

# Command to its module, which has `run(args)` and may have `add_arguments(parser)`, and
# what it does.
COMMANDS = {
    "vendor": ("vendoring.vendor", "Materialise upstream's packages, patched."),
    "lint-series": ("series.lint", "Check the rules for patches."),
    "rebase": ("rebase.command", "Move the patch series to another upstream release."),
    "advisories": ("security_page", "Write the tables of SECURITY.md."),
    "wheel": ("wheel.build", "Build a wheel, or all; print path and sha256."),
    "env": ("environment.reference", "Install the reference wheel; print where."),
    "demo": ("demo.demo", "Serve with balance off and adaptive; compare."),
}
EXIT_ERROR = 1
OF_THE_DISK = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
}
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells say it


def main(argv: Sequence[str] | None = None) -> int:
    from vllm_balance.terminal import print_anything, printing

    print_anything()
    try:
        arguments = sys.argv[1:] if argv is None else argv
        args = parser_for(arguments).parse_args(arguments)
        return printing(lambda: int(args.run(args)))
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except OSError as error:
        if error.errno not in OF_THE_DISK:
            raise
        print(
            f"error: {Path.cwd()}: expected to write in it, found {error.strerror} for "
            f"{error.filename or 'a file'}; make room, or run this in a checkout of "
            "your own",
            file=sys.stderr,
        )
        return EXIT_ERROR
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(("balance_tools", "vllm")):
            raise
        print(
            f"error: {error.name}: expected this module for the tools, found none in "
            f"{sys.executable}; use .venv/bin/python, which any make target sets up",
            file=sys.stderr,
        )
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("interrupted: run the same command again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED


def parser_for(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all commands, with the arguments of the one that is asked for.

    Only its module is imported: it starts quickly, and lacks nothing another one needs.
    """
    parser = argparse.ArgumentParser(
        prog="python -m balance_tools", description="Maintainers' tools."
    )
    subparsers = parser.add_subparsers(required=True, metavar="command")
    for name, (module_name, summary) in COMMANDS.items():
        command = subparsers.add_parser(name, help=summary, description=summary)
        if name in arguments[:1]:
            module = importlib.import_module(f"balance_tools.{module_name}")
            command.set_defaults(run=module.run)
            if hasattr(module, "add_arguments"):
                module.add_arguments(command)
    return parser


if __name__ == "__main__":
    if sys.getfilesystemencoding() != "utf-8":
        # Upstream has names in UTF-8, whatever the locale here. For children, too.
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    sys.exit(main())
