"""The command `vllm-balance`: what is installed, is the machine right, which policy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from vllm_balance import policy
from vllm_balance.build_info import BuildInfo, load_build_info
from vllm_balance.doctor import command
from vllm_balance.installed import find_installed
from vllm_balance.terminal import print_anything, printing
from vllm_balance.verify import NAMES, verify_installation

NOT_BUILT = (
    f"{Path(__file__).parent}: expected the build record of a wheel, found none, for "
    "this is a checkout or an editable install; build the wheel with `make wheel` and "
    "install it with pip"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 when all is well, 1 when something was found."""
    print_anything()
    return printing(lambda: _main(arguments))


def parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    whole = argparse.ArgumentParser(
        prog="vllm-balance", description="What is installed, and is it intact."
    )
    commands = whole.add_subparsers(dest="command", required=True)
    for name, text, add_arguments in (
        ("info", "print what is installed", _add_arguments_of_info),
        ("verify", "compare every installed file with what was built", None),
        (
            "doctor",
            "is this machine right for the wheel; changes nothing",
            command.add_arguments,
        ),
        (
            "policy",
            "tell the policy of a running server, or change it",
            policy.add_arguments,
        ),
    ):
        about = f"{text[0].upper()}{text[1:]}."
        verb = commands.add_parser(name, help=text, description=about)
        if add_arguments is not None:
            add_arguments(verb)
    return whole


def _add_arguments_of_info(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="the whole record")


def _main(arguments: Sequence[str] | None) -> int:
    chosen = parser().parse_args(arguments)
    if chosen.command == "doctor":
        return command.run(chosen)
    if chosen.command == "policy":
        return policy.run(chosen)
    info = load_build_info()
    if info is None:
        print(NOT_BUILT, file=sys.stderr)
        return 1
    if chosen.command == "verify":
        return verify(info)
    print(json.dumps(asdict(info), indent=1) if chosen.json else describe(info))
    return 0


def verify(info: BuildInfo) -> int:
    """Print one line for each finding; 1 if there is one."""
    findings = verify_installation(info, find_installed(*NAMES))
    for finding in findings:
        print(finding, file=sys.stderr)
    if not findings:
        print(f"{info.wheel}: installed as it was built")
    return 1 if findings else 0


def describe(info: BuildInfo) -> str:
    """The record as lines of `name  value` for a person."""
    target = info.target
    if info.kernels:
        device = f"{info.device} ({info.soc})" if info.soc else info.device
        target += f", {info.kernels} kernels for {device} on {info.arch}"
    commit = info.commit or "not known"
    if info.dirty:
        commit += " with changes"
    rows = {
        **{f"installed {name}": value for name, value in info.distributions.items()},
        **{f"upstream {name}": value for name, value in info.upstreams.items()},
        "target": target,
        "kernels from": info.kernel_wheel or info.toolchain,
        "commit": commit,
        "files of ours": str(len(info.own_files)),
        "lock": info.lock_sha256,
        **{f"series {name}": value for name, value in info.series_sha256.items()},
        "folder": str(Path(__file__).resolve().parents[1]),
        **said_of_advisories(info),
    }
    shown = {name: value for name, value in rows.items() if value}
    width = max(map(len, shown))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())


def said_of_advisories(info: BuildInfo) -> dict[str, str]:
    """How many published vulnerabilities are in each state, and what to do if open."""
    states = [answer["state"] for answer in info.advisories.values()]
    numbers = [f"{states.count(state)} {state}" for state in sorted(set(states))]
    rows = {"advisories": f"until {info.advisories_gathered}: {', '.join(numbers)}"}
    for name, answer in info.advisories.items():
        if answer["state"] == "open":
            rows[f"open {name}"] = f"{answer['severity']}; {answer['answer']}"
    return rows


if __name__ == "__main__":
    sys.exit(main())
