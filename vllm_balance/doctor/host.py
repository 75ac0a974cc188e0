"""Checks of the host: shared memory, network interfaces, names and ports."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path

from vllm_balance.doctor.diagnosis import Diagnoses, Diagnosis, State, judged
from vllm_balance.doctor.machine import Machine

MEGABYTE = 1 << 20
QUEUE_MB = 160
"""The largest size of vLLM's queue to the workers of a rank: ten chunks of
VLLM_MQ_MAX_CHUNK_BYTES_MB, 16."""
SHARED_MB = 1024
"""`--shm-size=1g` of upstream's installation guide."""
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "": 1}

GLOO, HCCL = "GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"
BASE_PORT = "HCCL_IF_BASE_PORT"
HCCL_PORTS = 32
"""The ports from HCCL_IF_BASE_PORT on (60000) that HCCL may take, by the reference of
its variables: 32 from CANN 8.5 on, and 16 before."""


def shared_memory(machine: Machine) -> Diagnoses:
    """Checks /dev/shm, for messages to workers and for collectives on one host."""
    mounts = machine.read("/proc/self/mounts")
    options = re.findall(r"^\S+ /dev/shm \S+ (\S+)", mounts, re.M)
    is_real = machine.root == Path("/") and Path("/dev/shm").is_dir()
    if (options and "ro" in options[-1].split(",")) or (
        is_real and not os.access("/dev/shm", os.W_OK)
    ):
        do = "mount it so that this user can write to it"
        yield Diagnosis("/dev/shm", "bad", "cannot be written to", "writable", do)
        return
    size = re.search(r"\bsize=(\d+)([kmg]?)", options[-1]) if options else None
    if size:
        megabytes = int(size[1]) * UNITS[size[2]] // MEGABYTE
    elif is_real:
        megabytes = shutil.disk_usage("/dev/shm").total // MEGABYTE
    else:
        yield Diagnosis("/dev/shm", "unknown", "no size in /proc/self/mounts")
        return
    do = "docker run --shm-size=1g; in Kubernetes an emptyDir with medium: Memory"
    needed = QUEUE_MB * machine.plan.local_ranks
    expected, few = f"{max(needed, SHARED_MB)} MB", megabytes < SHARED_MB
    found = f"{megabytes} MB"
    yield judged("/dev/shm", found, expected, do, bad=megabytes < needed, warn=few)


def interfaces(machine: Machine) -> Diagnoses:
    files = machine.glob("/sys/class/net/*/operstate")
    states = {Path(file).parent.name: machine.read(file).strip() for file in files}
    up = [name for name, state in states.items() if state in ("up", "unknown")]
    if not up:
        yield Diagnosis("interfaces", "unknown", "none")
    for variable in (GLOO, HCCL):
        value = machine.environ.get(variable, "")
        if not value or not states or not (missing := _missing(variable, value, up)):
            continue
        # The address of an interface that is down still reaches this host, and with
        # HCCL_IF_IP, HCCL ignores the name.
        unused = variable == HCCL and machine.environ.get("HCCL_IF_IP")
        bad = bool(_missing(variable, value, list(states)) and not unused)
        found = f"no {missing} that is up; there are {', '.join(up)}"
        do = f"export {variable}=<the ranks' network>, see `ip a`"
        expected = "an interface that is up"
        yield judged(variable, found, expected, do, bad=bad, warn=True)
    local = _addresses(machine)
    for variable in ("HCCL_IF_IP", "VLLM_HOST_IP"):
        address = machine.environ.get(variable)
        if address and local and not local & _plain([address]):
            do = f"export {variable}=<this host's address>, see `ip a`"
            expected = "one of " + ", ".join(sorted(local))
            yield Diagnosis(variable, "bad", address, expected, do)
    if machine.plan.spans_hosts and not machine.environ.get(GLOO):
        do = f"export {GLOO}=<the interface of the ranks' network>"
        yield Diagnosis(GLOO, "warn", "not set, and ranks are on other hosts", do=do)
    yield ", ".join(up)


def _missing(variable: str, value: str, names: Sequence[str]) -> str:
    """The part of a variable that names no interface; empty if there is none.

    torch 2.13 makes a device of each name for gloo, and ends if one is not there. HCCL
    (CANN 8.0 to 9.0) takes the first interface that the list matches: `eth,enp` by
    prefix, `=eth0,enp0` by name; with `^` before it, the first that it does not match.
    Both refuse an empty name.
    """
    mark, listed = re.findall(r"^(\^?=?)(.*)", value)[0]
    if variable == GLOO:
        chosen = value.removesuffix(",").split(",")
        # `eth0:1` is a label of a further address of eth0.
        absent = [name for name in chosen if name.partition(":")[0] not in names]
    else:
        chosen = listed.split(",")
        matched = {
            name
            for name in names
            for text in chosen
            if name == text or ("=" not in mark and name.startswith(text))
        }
        taken = set(names) - matched if "^" in mark else matched
        absent = [] if taken else [value]
    return "'' (an empty name)" if "" in chosen else ", ".join(absent)


def _addresses(machine: Machine) -> set[str]:
    trie = machine.read("/proc/net/fib_trie")
    local = re.findall(r"\|-- (\S+)\n\s+/32 host LOCAL", trie)
    rows = machine.read("/proc/net/if_inet6")
    digits = re.findall(r"^([0-9a-f]{32}) ", rows, re.M)
    return _plain([*local, *(":".join(re.findall("....", d)) for d in digits)])


def _plain(addresses: Iterable[str]) -> set[str]:
    """Addresses as Python writes them, without zones; other texts are unchanged."""
    plain = set()
    for text in addresses:
        try:
            address = ip_address(text.strip("[]").partition("%")[0])
        except ValueError:
            plain.add(text)
        else:
            plain.add(str(getattr(address, "ipv4_mapped", None) or address))
    return plain


def names(machine: Machine) -> Diagnoses:
    plan, local = machine.plan, _addresses(machine)
    hostname = machine.read("/proc/sys/kernel/hostname").strip()
    for name in filter(None, dict.fromkeys((hostname, plan.address))):
        addresses = _resolved(machine, name)
        loopback = {a for a in addresses if re.match(r"127\.|::1$", a)}
        shown = ", ".join(sorted(addresses))
        do = f"add `<address> {name}` to /etc/hosts, or set {GLOO}"
        if not addresses:
            yield Diagnosis(
                name, "warn", "has no address", "one that the ranks reach", do
            )
        elif plan.spans_hosts and not addresses - loopback:
            yield Diagnosis(
                name, "warn", shown, "an address that other hosts reach", do
            )
        elif (
            name == plan.address
            and not plan.headless
            and local
            and not addresses & local | loopback
        ):
            expected = "an address of this host, for it has the API server"
            do = "--headless on every host but the head"
            yield Diagnosis("--data-parallel-address", "bad", shown, expected, do)
        else:
            yield Diagnosis(name, "ok", shown)


def _resolved(machine: Machine, name: str) -> set[str]:
    """Addresses of a name, from /etc/hosts or, on the real machine, the resolver."""
    if re.fullmatch(r"[\d.]+|.*:.*", name):
        return _plain([name])
    lines = machine.read("/etc/hosts").splitlines()
    hosts = [line.partition("#")[0].split() for line in lines]
    addresses = _plain(fields[0] for fields in hosts if name in fields[1:])
    if addresses or machine.root != Path("/"):
        return addresses
    try:
        return _plain(str(info[4][0]) for info in socket.getaddrinfo(name, None))
    except OSError:
        return set()


def ports(machine: Machine) -> Diagnoses:
    rows = machine.read("/proc/net/tcp") + machine.read("/proc/net/tcp6")
    if not rows:
        yield Diagnosis("ports", "unknown", "no /proc/net/tcp")
    # `sl local_address rem_address st`; 0A is LISTEN.
    in_hex = re.findall(r"^\s*\d+: \w+:(\w{4}) \w+:\w{4} 0A", rows, re.M)
    listening = {int(port, 16) for port in in_hex}
    plan = machine.plan
    option_of = {} if plan.headless or plan.uds else {plan.port: "--port"}
    if plan.ranks > 1 and not plan.headless:
        option_of[plan.rpc_port] = "--data-parallel-rpc-port"
    try:
        int(machine.environ.get("VLLM_PORT", "0"))
    except ValueError:
        do = "unset it; a Service of Kubernetes that is called vllm sets it, where a "
        do += "pod is without enableServiceLinks: false"
        port_text = repr(machine.environ["VLLM_PORT"])
        yield Diagnosis("VLLM_PORT", "bad", port_text, "a number", do)
    # With a range in that variable, HCCL looks for free ports in it.
    if machine.is_for_npus and not machine.environ.get("HCCL_HOST_SOCKET_PORT_RANGE"):
        base, value = 60000, machine.environ.get(BASE_PORT)
        if value and re.fullmatch("[0-9]{4,5}", value) and 1024 <= int(value) <= 65520:
            base = int(value)
        elif value is not None:
            expected, do = "a number from 1024 to 65520", f"unset it: then it is {base}"
            bad = value != ""
            yield judged(BASE_PORT, repr(value), expected, do, bad=bad, warn=True)
        option_of |= dict.fromkeys(range(base, base + HCCL_PORTS), BASE_PORT)
    for port in sorted(option_of.keys() & listening):
        option = option_of[port]
        do = f"`ss -ltnp sport = :{port}` names who; stop it, or change {option}"
        # Another server on this host may have these ports for its own NPUs.
        state: State = "bad" if plan.ranks and option[0] == "-" else "warn"
        yield Diagnosis(f"port {port}", state, "something listens on it", "free", do)
    yield f"{len(option_of)} free"
