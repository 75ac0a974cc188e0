"""The command `vllm-balance`, with all its verbs."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from vllm_balance.errors import UsageError
from vllm_balance.terminal import print_anything, printing

TRIAL = "trial"
VERBS = {
    "simulate": (
        "simulator.simulate",
        "compare policies on a workload, in virtual time",
    ),
    "recommend": (
        "simulator.recommend",
        "name the policy for a workload, or say to leave balance scheduling off",
    ),
    TRIAL: (
        "trial.command",
        "compare policies on your hardware, on a server under load, and report",
    ),
    "doctor": (
        "doctor.command",
        "is this machine right for the wheel; changes nothing",
    ),
    "policy": ("policy", "tell the policy of a running server, or change it"),
    "info": ("info", "print what is installed"),
    "verify": ("verify", "compare every installed file with what was built"),
}
"""By verb its module, with `run` and perhaps `add_arguments`, and its help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, 1 if it finds a problem, or 2 for bad input."""
    print_anything()
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    return printing(lambda: _run(command_line))


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all verbs, which knows the options of `only`, or of all.

    A verb needs no more than its own module imports, `recommend` nothing but Python.
    """
    command = argparse.ArgumentParser(
        prog="vllm-balance",
        description="Would balance scheduling help, does it, and is all installed as "
        "it was built.",
    )
    verbs = command.add_subparsers(metavar="VERB", required=True)
    for name, (module, text) in VERBS.items():
        about = f"{text[0].upper()}{text[1:]}."
        verb = verbs.add_parser(name, help=text, description=about)
        if only in (None, name):
            implementation = importlib.import_module(f"vllm_balance.{module}")
            if hasattr(implementation, "add_arguments"):
                implementation.add_arguments(verb)
            verb.set_defaults(run=implementation.run)
    return command


def _run(arguments: Sequence[str]) -> int:
    try:
        chosen = _parse(arguments)
        return int(chosen.run(chosen) or 0)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if str(error.name).startswith("vllm_balance"):
            raise
        print(f"error: {error}; install the wheel: docs/install.md", file=sys.stderr)
        return 2
    except OSError as error:
        if not error.filename or isinstance(error, BrokenPipeError):
            raise
        print(f"error: {error.filename}: {error.strerror}.", file=sys.stderr)
        return 2


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a verb; those of a trial unparsed, as `words`.

    Most are for `vllm bench serve` and `vllm serve`, which no parser here knows.
    """
    verb, of_verb = arguments[0] if arguments else "", arguments[1:]
    command = parser(verb if verb in VERBS else "")
    if verb != TRIAL:
        return command.parse_args(arguments)
    of_trial = of_verb[: of_verb.index("--")] if "--" in of_verb else of_verb
    question = ["--help"] if {"-h", "--help"} & {*of_trial} else []
    chosen = command.parse_args([TRIAL, *question])
    chosen.words = of_verb
    return chosen


if __name__ == "__main__":
    sys.exit(main())
