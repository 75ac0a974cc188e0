"""The command line: `python -m balance_tools <command>`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from balance_tools.errors import ToolError

# vllm_balance, whose hashes the tools share with the wheel, lies beside tools/. Not by
# PYTHONPATH: programs that the tools start must not find the vllm that lies there too.
sys.path.append(str(Path(__file__).resolve().parents[2]))

# Command to the module that registers it with `add_parser(subparsers)`.
COMMANDS = {
    "lock": "upstream.resolve",
    "vendor": "vendoring.vendor",
    "lint-series": "series.lint",
    "check-placement": "hooks.check_placement",
    "rebase": "rebase.command",
    "kernels": "kernels.prebuilt",
    "wheel": "wheel.build",
    "wheels": "wheel.build",
    "release": "release.make",
    "env": "serving.env",
    "image": "serving.image",
    "demo": "serving.demo",
}
EXIT_ERROR = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells say it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    try:
        parser = argparse.ArgumentParser(
            prog="python -m balance_tools", description="Maintainers' tools."
        )
        subparsers = parser.add_subparsers(required=True, metavar="command")
        arguments = sys.argv[1:] if argv is None else argv
        for name in modules_for(arguments):
            importlib.import_module(f"balance_tools.{name}").add_parser(subparsers)
        args = parser.parse_args(arguments)
        return int(args.run(args))
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
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


def modules_for(arguments: Sequence[str]) -> list[str]:
    """The modules to import: one for a command, all to list or refuse commands.

    So a command starts quickly, and lacks nothing that only another one needs.
    """
    if arguments and arguments[0] in COMMANDS:
        return [COMMANDS[arguments[0]]]
    return list(dict.fromkeys(COMMANDS.values()))


if __name__ == "__main__":
    sys.exit(main())
