"""Between hosts, before a start: do they reach each other, and are they the same."""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from vllm_balance.build_info import BUILD_RECORD
from vllm_balance.doctor.cann import driver, toolkits
from vllm_balance.doctor.lines import Line
from vllm_balance.doctor.machine import Machine
from vllm_balance.doctor.serve import Plan
from vllm_balance.installed import find_installed

PORT = 13399
SECONDS = 5.0
MOST_BYTES = 1 << 16
APART_S = 1.0
"""Clocks that differ by more make logs of several hosts hard to read."""
PACKAGES = ("vllm", "torch", "torch-npu", "triton-ascend", "transformers")
OF_THE_PLAN = ("policy", "ttft", "ranks", "npus_per_rank", "rpc_port", "options")

Card = Mapping[str, Any]
"""What a host says of itself: names to what must be equal, and its time."""


class NoAnswerError(Exception):
    """The other host did not answer, or not as a doctor does."""


def card(machine: Machine, plan: Plan | None) -> dict[str, Any]:
    """What this host tells the other."""
    found = {name: find_installed(name) for name in PACKAGES}
    same = {name: d[0].version if d else "none" for name, d in found.items()}
    same["Python"] = ".".join(map(str, sys.version_info[:3]))
    same["wheel (hash of its record)"] = _hash_of_the_record()
    if machine.is_for_npus:
        for line in (*driver(machine), *toolkits(machine)):
            same[line.what] = line.found.partition(" in ")[0]
    return {
        "host": socket.gethostname(),
        "same": same,
        "plan": asdict(plan) if plan else None,
        "time": time.time(),
    }


def _hash_of_the_record() -> str:
    """The record names every file of ours, the lock and the patches, by hash."""
    if not BUILD_RECORD.is_file():
        return "a checkout"
    return hashlib.sha256(BUILD_RECORD.read_bytes()).hexdigest()[:16]


def listen(
    address: str, make_card: Callable[[], Card], say: Callable[[Sequence[Line]], None]
) -> None:
    """Answer every peer that comes, until interrupted.

    Args:
        address: `HOST:PORT`, `HOST` or empty.
        make_card: called for each peer.
        say: gets the lines on each peer.

    Raises:
        NoAnswerError: the address cannot be listened on.
    """
    host, port = split(address or "0.0.0.0")
    try:
        server = socket.create_server((host, port))
    except OSError as error:
        raise NoAnswerError(
            f"{host}:{port}: expected to listen here: {error}"
        ) from None
    with server:
        where = ":".join(map(str, server.getsockname()[:2]))
        print(f"listening on {where}; end with Ctrl-C", file=sys.stderr, flush=True)
        while True:
            connection, (peer, *_) = server.accept()
            with connection:
                try:
                    theirs = _receive(connection)
                    ours = make_card()
                    _send(connection, ours)
                except (NoAnswerError, OSError) as error:
                    say([Line(peer, "bad", str(error), "a doctor of this wheel")])
                    continue
            say(list(compare(ours, theirs, 0.0, ours["time"])))


def visit(address: str, ours: Card) -> Iterator[Line]:
    """Ask a listening doctor, and compare.

    Args:
        address: `HOST:PORT` or `HOST`.
        ours: what this host says of itself.

    Yields:
        How it was reached, and whatever differs.
    """
    host, port = split(address)
    where = f"{host}:{port}"
    try:
        start = time.time()
        with socket.create_connection((host, port), timeout=SECONDS) as connection:
            reached = time.time() - start
            _send(connection, {**ours, "time": time.time()})
            asked = time.time()
            theirs = _receive(connection)
            end = time.time()
    except (NoAnswerError, OSError) as error:
        do = "run `vllm-balance doctor --listen` there; look at firewalls and `ip r`"
        yield Line(f"peer {where}", "bad", str(error), "a doctor that answers", do)
        return
    yield Line(f"peer {where}", "ok", f"reached in {reached * 1000:.1f} ms")
    yield from compare(ours, theirs, end - asked, end)


def split(address: str) -> tuple[str, int]:
    """Host and port; PORT where none is given.

    Raises:
        NoAnswerError: the port is no number.
    """
    host, _, port = address.rpartition(":") if ":" in address else (address, "", PORT)
    if not str(port).isdigit() or int(port) > 65535:
        raise NoAnswerError(f"{address}: expected HOST:PORT, found no port in it")
    return host.strip("[]") or "0.0.0.0", int(port)


def compare(ours: Card, theirs: Card, waited: float, now: float) -> Iterator[Line]:
    """What differs between two hosts.

    Args:
        ours: of this host.
        theirs: of the other.
        waited: seconds between question and answer: the clock is known no better.
        now: this host's time when the answer came.

    Yields:
        A line on each thing that differs, or one that all is the same.
    """
    other = str(theirs["host"])
    different = False
    names = [*ours["same"], *(n for n in theirs["same"] if n not in ours["same"])]
    for name in names:
        here, there = ours["same"].get(name, "none"), theirs["same"].get(name, "none")
        if here != there:
            do = "install the same on all hosts"
            yield Line(f"{name} on {other}", "bad", f"{there}", f"{here}", do)
            different = True
    if not different:
        yield Line(f"versions on {other}", "ok", f"the same {len(names)}")
    apart = theirs["time"] - now
    if abs(apart) > APART_S + waited:
        do = "chronyc tracking, or timedatectl, on both"
        yield Line(f"clock of {other}", "warn", f"{apart:+.1f} s", "the same", do)
    else:
        yield Line(f"clock of {other}", "ok", f"less than {APART_S + waited:.1f} s off")
    here, there = ours["plan"], theirs["plan"]
    if here is None or there is None:
        do = "give both their command line: … -- vllm serve …"
        yield Line(f"policy on {other}", "unknown", "not both were told", do=do)
        return
    for name in OF_THE_PLAN:
        if here.get(name) != there.get(name):
            do = "start all hosts with the same arguments"
            found, expected = f"{there.get(name)}", f"{here.get(name)}"
            yield Line(f"{name} on {other}", "bad", found, expected, do)
    if all(here.get(name) == there.get(name) for name in OF_THE_PLAN):
        yield Line(f"policy on {other}", "ok", f"{here['policy']}, as here")


def _send(connection: socket.socket, message: Card) -> None:
    connection.settimeout(SECONDS)
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> Card:
    connection.settimeout(SECONDS)
    data = b""
    end = time.monotonic() + SECONDS
    while not data.endswith(b"\n"):
        chunk = connection.recv(4096)
        data += chunk
        if not chunk or len(data) > MOST_BYTES or time.monotonic() > end:
            raise NoAnswerError(f"{len(data)} bytes came, and no whole answer")
    try:
        message = json.loads(data)
        if isinstance(message["same"], dict) and isinstance(message["host"], str):
            return {"plan": None, **message, "time": float(message["time"])}
    except (ValueError, KeyError, TypeError):
        pass
    raise NoAnswerError(f"not what a doctor says: {data[:60]!r}")
