"""Interfaces, addresses, names and ports that the ranks will use."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

from vllm_balance.doctor.lines import Line
from vllm_balance.doctor.machine import Machine
from vllm_balance.doctor.serve import Plan

INTERFACES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")
ADDRESSES = ("HCCL_IF_IP", "VLLM_HOST_IP")
HCCL_PORTS = 16
"""As many from HCCL_IF_BASE_PORT on (60000), says the vendor's reference."""


def interfaces(machine: Machine, plan: Plan | None) -> Iterator[Line]:
    """The interfaces and addresses that variables name."""
    up = {}
    for name in machine.glob("/sys/class/net/*"):
        state = (machine.read(f"{name}/operstate") or "unknown").strip()
        up[Path(name).name] = state in ("up", "unknown")
    there = ", ".join(sorted(up)) or "none"
    wrong = False
    for variable in INTERFACES:
        for name in filter(None, machine.environ.get(variable, "").split(",")):
            # HCCL's own form: `=eth0` is that one, `eth` all that begin so, `^` not.
            wanted = name.lstrip("=")
            exact = variable != INTERFACES[2] or name.startswith("=")
            found = [
                n for n in up if n == wanted or (not exact and n.startswith(wanted))
            ]
            if name.startswith("^") or any(up[n] for n in found):
                continue
            said = f"{wanted} is down" if found else f"no {wanted}; there are {there}"
            do = f"export {variable}=<the interface of the ranks' network>, see `ip a`"
            yield Line(variable, "bad", said, "an interface that is up", do)
            wrong = True
    local = _addresses(machine)
    for variable in ADDRESSES:
        address = machine.environ.get(variable)
        if address and local and address not in local:
            do = f"export {variable}=<this host's address>, see `ip -4 a`"
            expected = "one of " + ", ".join(sorted(local))
            yield Line(variable, "bad", address, expected, do)
            wrong = True
    if plan and plan.spans_hosts and not machine.environ.get(INTERFACES[0]):
        do = f"export {INTERFACES[0]}=<the interface of the ranks' network>"
        yield Line(
            INTERFACES[0], "warn", "not set, and ranks run on other hosts", do=do
        )
        wrong = True
    if not wrong:
        yield Line("interfaces", "ok" if up else "unknown", there)


def _addresses(machine: Machine) -> set[str]:
    """IPv4 addresses of this host; empty where the kernel does not show them."""
    trie = machine.read("/proc/net/fib_trie") or ""
    return set(re.findall(r"\|-- (\S+)\n\s+/32 host LOCAL", trie))


def names(machine: Machine, plan: Plan | None) -> Iterator[Line]:
    """The host's own name, and that of the head."""
    own = (machine.read("/proc/sys/kernel/hostname") or "").strip()
    wanted = [own] if own else []
    if plan and plan.address and not re.fullmatch(r"[\d.]+|.*:.*", plan.address):
        wanted.append(plan.address)
    hosts = machine.read("/etc/hosts") or ""
    local = _addresses(machine)
    for name in wanted:
        lines = [line.partition("#")[0].split() for line in hosts.splitlines()]
        found = {words[0] for words in lines if name in words[1:]}
        found = found or _resolved(machine, name)
        loops = {a for a in found if a.startswith("127.") or a == "::1"}
        do = f"add `<address> {name}` to /etc/hosts, or set GLOO_SOCKET_IFNAME"
        if not found:
            yield Line(name, "warn", "has no address", "one that the ranks reach", do)
        elif plan and plan.spans_hosts and found == loops:
            text = ", ".join(sorted(found))
            yield Line(name, "warn", text, "an address that other hosts reach", do)
        else:
            yield Line(name, "ok", ", ".join(sorted(found)))
    if plan and plan.spans_hosts and not plan.headless and local and plan.address:
        found = {plan.address} | _resolved(machine, plan.address)
        if not found & local:
            expected = "an address of this host, for it has the API server"
            do = "the head's own address on every host, and --headless on the others"
            yield Line("--data-parallel-address", "bad", plan.address, expected, do)


def _resolved(machine: Machine, name: str) -> set[str]:
    if machine.root != Path("/"):
        return set()
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError:
        return set()


def ports(machine: Machine, plan: Plan | None) -> Iterator[Line]:
    """Ports that something else listens on."""
    tables = [machine.read(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    if tables[0] is None:
        yield Line("ports", "unknown", "no /proc/net/tcp")
        return
    # `sl local_address rem_address st`; 0A is LISTEN.
    rows = re.findall(
        r"^\s*\d+: \w+:(\w{4}) \w+:\w{4} 0A", "\n".join(filter(None, tables)), re.M
    )
    listening = {int(port, 16) for port in rows}
    wanted: dict[int, str] = {}
    if plan is None or not plan.headless:
        wanted[plan.port if plan else 8000] = "--port"
    if plan and plan.ranks > 1 and not plan.headless:
        wanted[plan.rpc_port] = "--data-parallel-rpc-port"
    if machine.is_for_npus:
        base = machine.environ.get("HCCL_IF_BASE_PORT", "60000")
        for port in range(int(base), int(base) + HCCL_PORTS):
            wanted[port] = "HCCL_IF_BASE_PORT"
    taken = sorted(wanted.keys() & listening)
    for port in taken:
        do = f"`ss -ltnp sport = :{port}` names the process; stop it, or change "
        do += wanted[port]
        yield Line(f"port {port}", "bad", "something listens on it", "free", do)
    if not taken:
        yield Line("ports", "ok", f"{len(wanted)} are free")


def device_network(machine: Machine, plan: Plan | None) -> Iterator[Line]:
    """/etc/hccn.conf: addresses of the NPUs' own network, between hosts."""
    if not machine.is_for_npus:
        return
    look = "for i in $(seq 0 7); do hccn_tool -i $i -ip -g; done"
    text = machine.read("/etc/hccn.conf")
    if text is None:
        found = "no /etc/hccn.conf; containers have one only if it is mounted"
        yield Line("hccn.conf", "unknown", found, do=f"on the host: {look}")
        return
    given = set(map(int, re.findall(r"^\s*address_(\d+)\s*=\s*\S", text, re.M)))
    missing = [n.number for n in machine.smi.npus if n.number not in given]
    if missing and plan and plan.spans_hosts:
        do = f"hccn_tool -i {missing[0]} -ip -s address … netmask …; {look}"
        found = f"no address_{missing[0]}" + (" and others" if missing[1:] else "")
        yield Line("hccn.conf", "bad", found, "an address for each NPU", do)
    else:
        yield Line("hccn.conf", "ok", f"{len(given)} addresses")
