"""The command `vllm-balance doctor`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from vllm_balance.build_info import load_build_info
from vllm_balance.doctor import cann, host, network, npus, peer, serve, software
from vllm_balance.doctor.lines import STATES, Line, show, worst
from vllm_balance.doctor.machine import Machine
from vllm_balance.doctor.serve import Plan
from vllm_balance.doctor.variables import variables

Check = Callable[[Machine], Iterable[Line]]
CheckOfPlan = Callable[[Machine, Plan | None], Iterable[Line]]

OF_NPUS: tuple[Check, ...] = (
    npus.devices,
    npus.chips,
    npus.use,
    cann.driver,
    cann.toolkits,
    cann.libraries,
)
OF_ALL: tuple[CheckOfPlan, ...] = (
    host.shared_memory,
    host.limits,
    host.cores,
    host.tools,
    network.interfaces,
    network.names,
    network.ports,
    network.device_network,
    variables,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument(
        "--fail-on",
        choices=STATES[1:],
        default="bad",
        help="exit with 1 if a line is as bad as this (default: %(default)s)",
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--pid", type=int, help="who is waiting for whom in a server")
    asked.add_argument(
        "--listen",
        metavar="HOST:PORT",
        nargs="?",
        const="",
        help=f"answer other hosts (default port {peer.PORT})",
    )
    asked.add_argument("--peer", metavar="HOST:PORT", help="compare with a host")
    parser.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    parser.add_argument(
        "serve", nargs="*", metavar="-- vllm serve …", help="a command line to look at"
    )


def run(chosen: argparse.Namespace) -> int:
    """Look, print, and say by the status whether something is wrong."""
    machine = Machine(chosen.root, dict(os.environ), load_build_info())
    try:
        return _run(chosen, machine)
    except peer.NoAnswerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _run(chosen: argparse.Namespace, machine: Machine) -> int:
    lines: list[Line] = []

    def say(more: Sequence[Line]) -> None:
        print(show(more, chosen.json), flush=True)

    if chosen.pid is not None:
        from vllm_balance.doctor.hang import report

        lines = list(report(chosen.pid))
        say(lines)
        return _status(lines, chosen.fail_on)
    plan, refused = None, ""
    if chosen.serve:
        arguments = serve.arguments_of(chosen.serve)
        if arguments is None:
            found = " ".join(chosen.serve)
            error = f"expected `vllm serve …` after --, found: {found}"
            print(f"error: {error}", file=sys.stderr)
            return 2
        plan, refused = serve.plan_of(machine, arguments)
    if chosen.listen is not None:
        peer.listen(chosen.listen, lambda: peer.card(machine, plan), say)
    if chosen.peer is not None:
        lines = list(peer.visit(chosen.peer, peer.card(machine, plan)))
    else:
        lines = list(look(machine, plan))
    if chosen.serve:
        lines += serve.balance(machine, plan, refused)
    say(lines)
    return _status(lines, chosen.fail_on)


def look(machine: Machine, plan: Plan | None) -> Iterator[Line]:
    """All checks; one that fails itself says so in the place of its lines."""
    checks: list[tuple[str, Callable[[], Iterable[Line]]]] = [
        (c.__name__, lambda c=c: c(machine))  # type: ignore[misc]
        for c in (software.wheel, software.requirements)
    ]
    if machine.is_for_npus:
        checks += [(c.__name__, lambda c=c: c(machine)) for c in OF_NPUS]  # type: ignore[misc]
    checks += [(c.__name__, lambda c=c: c(machine, plan)) for c in OF_ALL]  # type: ignore[misc]
    if not machine.is_for_npus:
        yield Line("NPUs", "ok", "this wheel needs none")
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:
            found = f"could not be looked at: {type(error).__name__}: {error}"
            yield Line(name, "unknown", found)


def _status(lines: Sequence[Line], limit: str) -> int:
    return int(STATES.index(worst(lines)) >= STATES.index(limit))  # type: ignore[arg-type]
