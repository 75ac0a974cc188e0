"""Interfaces, addresses, names and ports that the ranks will use."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

from vllm_balance.doctor.lines import Line, State
from vllm_balance.doctor.machine import Machine

GLOO, HCCL = "GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"
HCCL_PORTS = 16
"""As many from HCCL_IF_BASE_PORT on (60000), says the vendor's reference."""


def interfaces(machine: Machine) -> Iterator[Line]:
    """The interfaces and addresses that variables name."""
    names = machine.glob("/sys/class/net/*")
    states = {Path(n).name: machine.read(f"{n}/operstate") or "" for n in names}
    up = [name for name, state in states.items() if state.strip() in ("up", "unknown")]
    lines = []
    for variable in (GLOO, "TP_SOCKET_IFNAME", HCCL):
        for value in filter(None, machine.environ.get(variable, "").split(",")):
            # HCCL's own form: `=eth0` is that one, `eth` all that begin so, `^` not.
            name, is_prefix = value.lstrip("="), variable == HCCL and value[0] != "="
            if value[0] == "^" or name in up:
                continue
            if not any(is_prefix and other.startswith(name) for other in up):
                found = f"no {name} that is up; there are {', '.join(up)}"
                do = f"export {variable}=<the ranks' network>, see `ip a`"
                lines.append(
                    Line(variable, "bad", found, "an interface that is up", do)
                )
    local = _addresses(machine)
    for variable in ("HCCL_IF_IP", "VLLM_HOST_IP"):
        address = machine.environ.get(variable)
        if address and local and address not in local:
            do = f"export {variable}=<this host's address>, see `ip -4 a`"
            expected = "one of " + ", ".join(sorted(local))
            lines.append(Line(variable, "bad", address, expected, do))
    if machine.spans_hosts and not machine.environ.get(GLOO):
        do = f"export {GLOO}=<the interface of the ranks' network>"
        lines.append(Line(GLOO, "warn", "not set, and ranks are on other hosts", do=do))
    seen: State = "ok" if up else "unknown"
    yield from lines or [Line("interfaces", seen, ", ".join(up) or "none")]


def _addresses(machine: Machine) -> set[str]:
    """IPv4 addresses of this host; empty where the kernel does not show them."""
    trie = machine.read("/proc/net/fib_trie") or ""
    return set(re.findall(r"\|-- (\S+)\n\s+/32 host LOCAL", trie))


def names(machine: Machine) -> Iterator[Line]:
    """The host's own name, and the address of the head."""
    plan, local = machine.plan, _addresses(machine)
    own = (machine.read("/proc/sys/kernel/hostname") or "").strip()
    head = plan.address if plan else ""
    for name in filter(None, dict.fromkeys((own, head))):
        found = _resolved(machine, name)
        shown = ", ".join(sorted(found))
        do = f"add `<address> {name}` to /etc/hosts, or set {GLOO}"
        if not found:
            yield Line(name, "warn", "has no address", "one that the ranks reach", do)
        elif machine.spans_hosts and all(a.startswith(("127.", "::1")) for a in found):
            yield Line(name, "warn", shown, "an address that other hosts reach", do)
        elif name == head and plan and not plan.headless and not found & local:
            expected = "an address of this host, for it has the API server"
            do = "--headless on every host but the head"
            yield Line("--data-parallel-address", "bad", shown, expected, do)
        else:
            yield Line(name, "ok", shown)


def _resolved(machine: Machine, name: str) -> set[str]:
    """Addresses of a name: from the file, or, on the real machine, as programs ask."""
    if re.fullmatch(r"[\d.]+|.*:.*", name):
        return {name}
    lines = [x.partition("#")[0].split() for x in machine.lines("/etc/hosts")]
    found = {words[0] for words in lines if name in words[1:]}
    if found or machine.root != Path("/"):
        return found
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError:
        return set()


def ports(machine: Machine) -> Iterator[Line]:
    """Ports that something else listens on."""
    rows = [*machine.lines("/proc/net/tcp"), *machine.lines("/proc/net/tcp6")]
    if not rows:
        yield Line("ports", "unknown", "no /proc/net/tcp")
        return
    # `sl local_address rem_address st`; 0A is LISTEN.
    found = (re.match(r"\s*\d+: \w+:(\w{4}) \w+:\w{4} 0A", row) for row in rows)
    listening = {int(row[1], 16) for row in found if row}
    plan, wanted = machine.plan, {}
    if plan is None or not plan.headless:
        wanted[plan.port if plan else 8000] = "--port"
    if plan and plan.ranks > 1 and not plan.headless:
        wanted[plan.rpc_port] = "--data-parallel-rpc-port"
    if machine.is_for_npus:
        base = int(machine.environ.get("HCCL_IF_BASE_PORT", "60000"))
        wanted |= dict.fromkeys(range(base, base + HCCL_PORTS), "HCCL_IF_BASE_PORT")
    for port in sorted(wanted.keys() & listening):
        do = f"`ss -ltnp sport = :{port}` names who; stop it, or change {wanted[port]}"
        # HCCL of a server beside this one has such ports, too, for NPUs of its own.
        sure: State = "bad" if plan and wanted[port][0] == "-" else "warn"
        yield Line(f"port {port}", sure, "something listens on it", "free", do)
    if not wanted.keys() & listening:
        yield Line("ports", "ok", f"{len(wanted)} are free")


def device_network(machine: Machine) -> Iterator[Line]:
    """/etc/hccn.conf: addresses of the NPUs' own network, between hosts."""
    look = "for i in $(seq 0 7); do hccn_tool -i $i -ip -g; done"
    text = machine.read("/etc/hccn.conf")
    given = set(map(int, re.findall(r"^\s*address_(\d+)\s*=\s*\S", text or "", re.M)))
    missing = [n.number for n in machine.smi.npus if n.number not in given]
    if text is None:
        found = "no such file; containers have one only if it is mounted"
        yield Line("hccn.conf", "unknown", found, do=f"on the host: {look}")
    elif missing and machine.spans_hosts:
        found = f"no address for {', '.join(map(str, missing))}"
        do = f"hccn_tool -i {missing[0]} -ip -s address … netmask …; then {look}"
        yield Line("hccn.conf", "bad", found, "an address for each NPU", do)
    else:
        yield Line("hccn.conf", "ok", f"{len(given)} addresses")
