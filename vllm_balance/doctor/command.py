"""The command `vllm-balance doctor`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from vllm_balance.build_info import load_build_info
from vllm_balance.doctor import cann, host, network, npus, peer, serve, software
from vllm_balance.doctor.lines import STATES, Line, show, worst
from vllm_balance.doctor.machine import Machine
from vllm_balance.doctor.variables import variables

CHECKS: tuple[Callable[[Machine], Iterable[Line]], ...] = (
    software.wheel,
    software.requirements,
    npus.devices,
    npus.chips,
    npus.use,
    cann.driver,
    cann.toolkits,
    cann.libraries,
    network.device_network,
    host.shared_memory,
    host.limits,
    host.cores,
    host.tools,
    network.interfaces,
    network.names,
    network.ports,
    variables,
)
OF_NPUS = CHECKS[2:9]
"""Not for a wheel that needs none."""


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
    text = "who is waiting for whom in the server with this process, or in the only one"
    asked.add_argument("--pid", type=int, nargs="?", const=0, help=text)
    text = f"answer other hosts (default port {peer.PORT})"
    asked.add_argument("--listen", metavar="HOST:PORT", nargs="?", const="", help=text)
    asked.add_argument("--peer", metavar="HOST:PORT", help="compare with a host")
    parser.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    text = "a command line to look at"
    parser.add_argument("serve", nargs="*", metavar="-- vllm serve …", help=text)


def run(chosen: argparse.Namespace) -> int:
    """Look, print, and say by the status whether something is wrong."""

    def say(lines: Iterable[Line]) -> int:
        lines = list(lines)
        print(show(lines, chosen.json), flush=True)
        return int(STATES.index(worst(lines)) >= STATES.index(chosen.fail_on))

    if chosen.pid is not None:
        # Not above: what it needs must not keep the rest from being looked at.
        return say(import_module("vllm_balance.doctor.hang").report(chosen.pid))
    machine = Machine(chosen.root, dict(os.environ), load_build_info())
    try:
        plan, more = serve.plan_of(machine, chosen.serve)
        machine = replace(machine, plan=plan)
        if chosen.listen is not None:
            peer.listen(chosen.listen, peer.card(machine), say)
        if chosen.peer is not None:
            return say([*peer.visit(chosen.peer, peer.card(machine)), *more])
    except (peer.PeerError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return say([*look(machine), *more])


def look(machine: Machine) -> Iterator[Line]:
    """All checks; one that fails itself says so in the place of its lines."""
    if not machine.is_for_npus:
        yield Line("NPUs", "ok", "this wheel needs none")
    for check in CHECKS:
        if check in OF_NPUS and not machine.is_for_npus:
            continue
        try:
            yield from check(machine)
        except Exception as error:
            found = f"could not be looked at: {type(error).__name__}: {error}"
            yield Line(check.__name__, "unknown", found)
