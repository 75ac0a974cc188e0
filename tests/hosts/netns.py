"""Hosts of one machine: network namespaces, with a veth link each to a switch.

The switch is a bridge in the network namespace of the test process, which is not the
machine's own: `make test-hosts` starts the tests by `unshare`. All namespaces are
nameless and vanish with the last process in them, so that nothing is left to clean up,
not even by a run that is killed.
"""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

SWITCH = "switch"
NETWORK = "10.77.0"
INTERFACE = "eth0"
"""A host's only interface, beside the loopback."""

SLOW = ("tbf", "rate", "3mbit", "burst", "4kb", "latency", "20ms")
"""A slow link: packets queue for up to 20 ms, and those that do not fit are lost. A
token bucket, because every kernel has it; netem, which can do more, not every one."""


def in_own_namespace() -> bool:
    """Whether there is no other interface than the loopback, and perhaps our switch."""
    links = json.loads(_run("ip", "-json", "link", "show"))
    return {link["ifname"] for link in links} <= {"lo", SWITCH}


@dataclass(frozen=True)
class Host:
    """A network namespace, which the process `pid` keeps.

    Its end of the link is `INTERFACE`, the switch's end has the host's name.
    """

    name: str
    address: str
    pid: int

    @property
    def enter(self) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/{self.pid}/ns/net", "--")

    def cut(self) -> None:
        _run("ip", "link", "set", self.name, "down")

    def join(self) -> None:
        _run("ip", "link", "set", self.name, "up")

    def slow(self) -> None:
        _run("tc", "qdisc", "replace", "dev", self.name, "root", *SLOW)
        _run(*self.enter, *("tc", "qdisc", "replace", "dev", INTERFACE, "root", *SLOW))

    def normal(self) -> int:
        """Make the link fast again; how many packets it has lost."""
        mine = (*self.enter, "tc")
        lost = _lost("tc", self.name) + _lost(*mine, INTERFACE)
        _run("tc", "qdisc", "delete", "dev", self.name, "root")
        _run(*mine, "qdisc", "delete", "dev", INTERFACE, "root")
        return lost


@contextlib.contextmanager
def network(hosts: int) -> Iterator[list[Host]]:
    """A switch with `hosts` hosts: 10.77.0.1, ….2, …; this process is 10.77.0.254."""
    with contextlib.ExitStack() as stack:
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", SWITCH, "type", "bridge")
        stack.callback(_run, "ip", "link", "delete", SWITCH)
        _run("ip", "address", "add", f"{NETWORK}.254/24", "dev", SWITCH)
        _run("ip", "link", "set", SWITCH, "up")
        yield [stack.enter_context(_host(number)) for number in range(1, hosts + 1)]


@contextlib.contextmanager
def _host(number: int) -> Iterator[Host]:
    keeper = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"ready\n"
        host = Host(f"host{number}", f"{NETWORK}.{number}", keeper.pid)
        peer = ("peer", "name", INTERFACE, "netns", str(keeper.pid))
        _run("ip", "link", "add", host.name, "type", "veth", *peer)
        _run("ip", "link", "set", host.name, "master", SWITCH, "up")
        _run(*host.enter, "ip", "link", "set", "lo", "up")
        address = ("address", "add", f"{host.address}/24", "dev", INTERFACE)
        _run(*host.enter, "ip", *address)
        _run(*host.enter, "ip", "link", "set", INTERFACE, "up")
        yield host
    finally:
        # The link would follow its namespace, but later.
        subprocess.run(("ip", "link", "delete", f"host{number}"), check=False)
        keeper.kill()
        keeper.communicate()


def _lost(*command: str) -> int:
    """Packets that the queue of the interface, the last word, has dropped."""
    *tc, interface = command
    shown = _run(*tc, "-s", "-json", "qdisc", "show", "dev", interface, "root")
    drops: int = json.loads(shown)[0]["drops"]
    return drops


def _run(*command: str) -> str:
    """The output of a command; AssertionError with its words if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout
