"""The command `vllm-balance doctor`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from vllm_balance.build_info import load_build_info
from vllm_balance.doctor import host, npus, serve, server, software
from vllm_balance.doctor.diagnosis import (
    STATES,
    Diagnoses,
    Diagnosis,
    lines_of,
    show,
    worst,
)
from vllm_balance.doctor.machine import Machine
from vllm_balance.doctor.plan import Plan

Checks = dict[str, Callable[[Machine], Diagnoses]]
OF_NPUS: Checks = {
    "devices": npus.devices,
    "chip": npus.chips,
    "use of NPUs": npus.use,
    "driver": software.driver,
    "CANN": software.toolkits,
}
"""Checks for wheels that need NPUs."""
NEXT = (
    "next: vllm-balance trial … -- vllm serve …, which measures what it gains "
    "here; docs/operations.md"
)
OF_ALL: Checks = {
    "wheel": software.wheel,
    "requirements": software.requirements,
    "/dev/shm": host.shared_memory,
    "interfaces": host.interfaces,
    "names": host.names,
    "ports": host.ports,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument(
        "--fail-on",
        choices=STATES[1:],
        default="bad",
        help="exit with 1 if a line is as bad as this (default: bad)",
    )
    text = "what the server with this process, or the only one, does"
    parser.add_argument("--pid", type=int, nargs="?", const=0, help=text)
    parser.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    text = "a command line to look at"
    parser.add_argument("serve", nargs="*", metavar="-- vllm serve …", help=text)


def run(chosen: argparse.Namespace) -> int:
    if chosen.pid is not None:
        lines = list(server.report(chosen.pid))
    else:
        machine = Machine(chosen.root, dict(os.environ), load_build_info(), Plan())
        try:
            plan, plan_lines = serve.plan_of(machine, chosen.serve)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        lines = [*look(replace(machine, plan=plan)), *plan_lines]
    print(show(lines, chosen.json), flush=True)
    status = int(STATES.index(worst(lines)) >= STATES.index(chosen.fail_on))
    if chosen.pid is None and not (status or chosen.json):
        print(NEXT)
    return status


def look(machine: Machine) -> Iterator[Diagnosis]:
    if not machine.is_for_npus:
        yield Diagnosis("NPUs", "ok", "this wheel needs none")
    checks = OF_ALL | OF_NPUS if machine.is_for_npus else OF_ALL
    for name, check in checks.items():
        yield from lines_of(name, check(machine))
