"""The command line: `python -m balance_tools <command>`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from balance_tools.errors import ToolError

# Each of these modules has `add_parser(subparsers)`, which registers its commands.
COMMANDS = (
    "resolve",
    "vendor",
    "lint",
    "check_placement",
    "rebase.command",
    "kernels",
    "wheel",
    "env",
    "demo",
)
EXIT_ERROR = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells say it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    try:
        parser = argparse.ArgumentParser(
            prog="python -m balance_tools", description="Maintainers' tools."
        )
        subparsers = parser.add_subparsers(required=True, metavar="command")
        for name in COMMANDS:
            importlib.import_module(f"balance_tools.{name}").add_parser(subparsers)
        args = parser.parse_args(argv)
        return int(args.run(args))
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("interrupted: run the same command again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
