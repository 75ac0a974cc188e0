"""Between hosts, before a start: do they reach each other, and are they the same."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from ipaddress import IPv6Address
from typing import Any

from vllm_balance.build_info import BUILD_RECORD
from vllm_balance.doctor.lines import Line
from vllm_balance.doctor.machine import Machine
from vllm_balance.doctor.software import driver, toolkits
from vllm_balance.installed import find_installed

PORT = 13399
SECONDS = 5.0
MOST_BYTES = 1 << 16
APART_S = 1.0
"""Clocks that differ by more make logs of several hosts hard to read."""
PACKAGES = ("vllm", "torch", "torch-npu", "triton-ascend", "transformers")
OF_THE_PLAN = ("policy", "ttft", "ranks", "npus_per_rank", "rpc_port", "options")

Card = Mapping[str, Any]
"""What a host says of itself: its name, what must be the same, its plan and time."""


class PeerError(Exception):
    """The other host did not answer, or not as a doctor does."""


def card(machine: Machine) -> Card:
    """What this host tells the other."""
    found = {name: find_installed(name) for name in PACKAGES}
    same = {name: d[0].version if d else "none" for name, d in found.items()}
    same["Python"] = platform.python_version()
    record = BUILD_RECORD.read_bytes() if BUILD_RECORD.is_file() else b""
    # It names every file of ours, the lock and the patches, by hash.
    same["wheel's record"] = hashlib.sha256(record).hexdigest()[:16]
    if machine.is_for_npus:
        for line in (*driver(machine), *toolkits(machine)):
            same[line.what] = line.found.partition(" in ")[0]
    plan = asdict(machine.plan) if machine.plan.ranks else None
    return {"host": socket.gethostname(), "same": same, "plan": plan}


def listen(address: str, ours: Card, say: Callable[[Iterable[Line]], object]) -> None:
    """Answer every peer that comes, until interrupted, and say how it differs.

    Raises:
        PeerError: the address cannot be listened on.
    """
    has_both = socket.has_dualstack_ipv6()
    host, port = _split(address or ("::" if has_both else "0.0.0.0"))
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = has_both and host == "::"
        server = socket.create_server(where, family=family, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:  # a name without a part, as a..b
        raise PeerError(f"{address}: expected to listen here: {error}") from None
    with server:
        host, port = server.getsockname()[:2]
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        print(f"listening on {shown}; end with Ctrl-C", file=sys.stderr, flush=True)
        while True:
            connection, (other, *_) = server.accept()
            peer = other.removeprefix("::ffff:")
            try:
                with connection:
                    theirs = _receive(connection)
                    _send(connection, ours)
                say(compare(ours, theirs, 0.0, time.time()))
            except (PeerError, OSError) as error:
                say([Line(peer, "bad", str(error), "a doctor of this wheel")])


def visit(address: str, ours: Card) -> Iterator[Line]:
    """Ask a listening doctor: how it was reached, and whatever differs.

    Raises:
        PeerError: that is no address.
    """
    where = _split(address)
    try:
        start = time.monotonic()
        with socket.create_connection(where, timeout=SECONDS) as connection:
            reached = time.monotonic()
            _send(connection, ours)
            theirs = _receive(connection)
    except (PeerError, OSError, UnicodeError) as error:
        do = "run `vllm-balance doctor --listen` there; look at firewalls and `ip r`"
        yield Line(f"peer {address}", "bad", str(error), "a doctor that answers", do)
        return
    yield Line(f"peer {address}", "ok", f"reached in {(reached - start) * 1e3:.1f} ms")
    yield from compare(ours, theirs, time.monotonic() - reached, time.time())


def compare(ours: Card, theirs: Card, waited: float, now: float) -> Iterator[Line]:
    """What differs between two hosts.

    Args:
        ours: of this host.
        theirs: of the other.
        waited: seconds between question and answer: the clock is known no better.
        now: this host's time when the answer came.
    """
    other, apart = f" on {theirs['host']}", theirs["time"] - now
    do = "install the same wheel, packages and CANN on all hosts"
    yield from _differences("versions", other, ours["same"], theirs["same"], do)
    clock = Line(f"clock{other}", "ok", f"{apart:+.1f} s, to {APART_S + waited:.1f} s")
    if abs(apart) > APART_S + waited:
        do = "chronyc tracking, or timedatectl, on both"
        clock = Line(f"clock{other}", "warn", f"{apart:+.1f} s", "this host's time", do)
    yield clock
    if ours["plan"] is None or theirs["plan"] is None:
        do = "give both their command line: … -- vllm serve …"
        yield Line(f"arguments{other}", "unknown", "not both were told", do=do)
        return
    here, there = (
        {name: card["plan"].get(name) for name in OF_THE_PLAN}
        for card in (ours, theirs)
    )
    do = "start all hosts with the same arguments"
    yield from _differences("arguments", other, here, there, do)


def _differences(
    what: str, other: str, here: Card, there: Card, do: str
) -> Iterator[Line]:
    names = dict.fromkeys([*here, *there])
    found = [name for name in names if here.get(name) != there.get(name)]
    for name in found:
        theirs, ours = str(there.get(name)), str(here.get(name))
        yield Line(f"{name}{other}", "bad", theirs, f"{ours}, as here", do)
    if not found:
        yield Line(f"{what}{other}", "ok", f"the same {len(names)}")


ADDRESS = re.compile(
    r"(?:\[(?P<ipv6>[^]]+)\]|(?P<name>[^:[\]]+))(?::(?P<port>\d{1,5}))?"
    r"|(?P<bare>[^[\]]*:[^[\]]*:[^[\]]*)"
)
"""A name or an address; one of IPv6 in brackets, or, without a port, without them."""


def _split(address: str) -> tuple[str, int]:
    found = ADDRESS.fullmatch(address)
    port = int((found and found["port"]) or PORT)
    host = found and (found["ipv6"] or found["name"] or found["bare"])
    try:
        if found and not found["name"]:
            IPv6Address(host)
    except ValueError:
        host = None
    if not host or port > 65535:
        raise PeerError(
            f"{address}: expected HOST, HOST:PORT or [ADDRESS OF IPv6]:PORT, found "
            "something else"
        )
    return host, port


def _send(connection: socket.socket, message: Card) -> None:
    connection.settimeout(SECONDS)
    data = json.dumps({**message, "time": time.time()})
    connection.sendall(data.encode() + b"\n")


def _receive(connection: socket.socket) -> Card:
    connection.settimeout(SECONDS)
    data, end = b"", time.monotonic() + SECONDS
    while not data.endswith(b"\n"):
        chunk = connection.recv(4096)
        data += chunk
        if not chunk or len(data) > MOST_BYTES or time.monotonic() > end:
            raise PeerError(f"{len(data)} bytes came, and no whole answer")
    try:
        said = json.loads(data)
        same, plan = dict(said["same"]), said["plan"]
        plan = None if plan is None else {**plan}
        when = float(said["time"])
        whose = {"host": str(said["host"]), "time": when}
        if not math.isfinite(when):
            raise ValueError
        return whose | {"same": same, "plan": plan}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise PeerError(f"not what a doctor says: {data[:60]!r}") from None
