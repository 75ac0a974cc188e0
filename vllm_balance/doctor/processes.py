"""The processes of a server, as the kernel shows them: nobody has to answer."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

PROC = Path("/proc")
LOG_BYTES = 1 << 22
READ_BYTES = 1 << 18
"""What is read of other files: who writes a title or a status chooses its length."""
LOOK_S = 1.0
"""How long the kernel may take, which waits for a process that is in a driver."""

Answer = TypeVar("Answer")
Place = tuple[int, int]
"""Wave and step; rises with each step."""

STATUS_FILE = "/memfd:vllm-balance status"

ROLES = {
    r"EngineCor(?:e(?:_DP(\d+))?)?": "rank",
    r"DPCoordin(?:ator)?()": "coordinator",
    r"A(?:PI|pi)Server(?:_(\d+))?": "API server",
    r"Worker(\S*)": "worker",
}
"""What begins the name in title or log, to the role; the kernel cuts long names."""
UNNAMED = "unnamed process"
"""The role of a forked one of which nothing tells what it is."""


class Status(NamedTuple):
    """What a rank says that it does; times are of the monotonic clock.

    Written by `vllm.v1.core.sched.balance.group.status_file`.
    """

    rank: int
    size: int
    position: Place
    doing: str
    """model, exchange or idle"""
    since: float
    seen: float
    """When it was written."""
    others: Mapping[str, tuple[Place | None, float]] = {}
    """Where ranks that are late are, and since when; the store, if it is late, too."""
    stack: str = ""

    @classmethod
    def read(cls, text: str) -> Status | None:
        """None if that is none: anybody may have written it, and more behind it."""
        try:
            said, _ = json.JSONDecoder().raw_decode(text)
            others = {
                name: (place and (int(place[0]), int(place[1])), float(since))
                for name, (place, since) in said["others"].items()
                if name == "store" or name.isdecimal()
            }
            return cls(
                rank=int(said["rank"]),
                size=int(said["size"]),
                position=(int(said["wave"]), int(said["step"])),
                doing=str(said["doing"]),
                since=float(said["since"]),
                seen=float(said["seen"]),
                others=others,
                stack=str(said["stack"]),
            )
        except (ArithmeticError, AttributeError, LookupError, RecursionError):
            return None
        except (TypeError, ValueError):
            return None


@dataclass(frozen=True)
class Process:
    """One process at one moment."""

    pid: int
    parent: int
    state: str
    """As in `ps`: R runs, S sleeps, D is in the kernel, T is stopped, Z has ended."""
    role: str
    """`rank`, `coordinator`, `API server`, `worker`, `front-end`; empty: no part."""
    number: str
    arguments: tuple[str, ...]
    status: Status | None
    wanted_s: float
    """Seconds that its main thread has run, or waited for a core to run on."""
    waits_in: str
    """The function of the kernel in which its main thread sleeps."""
    user: str
    """The effective user, as a number."""

    @property
    def name(self) -> str:
        """The role and the number."""
        return f"{self.role} {self.number}".strip()


def within(
    look: Callable[[], Answer], otherwise: Answer, seconds: float = LOOK_S
) -> Answer:
    """What `look` returns, or `otherwise` if it fails or takes too long."""
    found = [otherwise]

    def run() -> None:
        with contextlib.suppress(OSError, ValueError):
            found[0] = look()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0]


def read_file(path: Path, most: int = READ_BYTES) -> str:
    """The beginning of a file."""
    with path.open("rb") as file:
        return file.read(most).decode(errors="replace")


def is_reached(pid: int) -> bool:
    """Whether a process is in our network; one in a container has its own."""
    ours, its = (
        within((PROC / each / "ns/net").readlink, None) for each in ("self", str(pid))
    )
    return its is None or its == ours


def clients_of(pid: int, port: int) -> int:
    """Open connections to a port of the network that a process is in."""
    folder = PROC / str(pid) / "net"
    texts = (
        within(partial(read_file, folder / name, LOG_BYTES), "")
        for name in ("tcp", "tcp6")
    )
    # `sl local_address rem_address st`; 01 is ESTABLISHED.
    row = re.compile(rf"^ *\d+: \w+:{port:04X} \S+ 01 ", re.M)
    return sum(len(row.findall(text)) for text in texts)


def look_at(pid: int, user: str | None = None) -> Process | None:
    """The process; None if there is none.

    Args:
        pid: of the process.
        user: whose status files are believed; None for nobody's.
    """
    folder = PROC / str(pid)

    def read(name: str) -> str:
        return within(lambda: read_file(folder / name), "")

    if not (stat := read("stat")):
        return None
    comm, rest = stat[stat.index("(") + 1 :].rsplit(")", 1)
    state, parent = rest.split()[:2]
    arguments = tuple(filter(None, read("cmdline").split("\0")))
    role, number = _role(arguments, comm)
    owner = re.search(r"^Uid:\s+\d+\s+(\d+)", read("status"), re.M)
    whose = owner[1] if owner else ""
    is_theirs = bool(role and whose) and whose == user
    status = within(lambda: _status(folder), None) if is_theirs else None
    if status is not None:
        role, number = "rank", str(status.rank)
    wanted_s = sum(map(int, read("schedstat").split()[:2])) / 1e9
    seen = (arguments, status, wanted_s, read("wchan").strip("0"), whose)
    return Process(pid, int(parent), state, role, number, *seen)


def _role(arguments: tuple[str, ...], comm: str) -> tuple[str, str]:
    for word in (*arguments[:1], comm):
        if "::" in word:
            return role_of(word.split("::", 1)[1])
    programs = {word.rsplit("/", 1)[-1] for word in arguments}
    served = "serve" in arguments and {"vllm", "vllm.entrypoints.cli.main"} & programs
    return ("front-end" if served else ""), ""


def role_of(name: str) -> tuple[str, str]:
    """The role and the number in a name that vLLM gives to a process."""
    for pattern, role in ROLES.items():
        if found := re.match(pattern, name):
            return role, found[1] or ("0" if name == "EngineCore" else "")
    return "", ""


def _status(folder: Path) -> Status | None:
    files = (folder / "fd").iterdir()
    found = (f for f in files if str(f.readlink()).startswith(STATUS_FILE))
    return next((Status.read(read_file(file)) for file in found), None)


def all_processes() -> dict[int, Process]:
    """Everything that runs on this machine, as far as it can be seen; no status."""
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]
    return {pid: found for pid in pids if (found := look_at(pid)) is not None}


def top_of(pid: int, processes: Mapping[int, Process]) -> int:
    """The first process of the server that this one belongs to."""
    while (parent := processes.get(processes[pid].parent)) and parent.role:
        pid = parent.pid
    return pid


def family(top: int, processes: Mapping[int, Process], log: str) -> Iterator[Process]:
    """The process and all that it started, without those that are no part of vLLM.

    A forked process cannot always change its title; then the log names it. All are of
    one user, and are looked at again, for their status files.
    """
    first = processes[top]
    yield look_at(top, first.user) or replace(first, state="Z")
    found = re.findall(r"\((\w+) pid=(\d{1,9})\)", log)
    names = {int(pid): name for name, pid in found}
    for pid, each in processes.items():
        if not each.role or pid == top or top_of(pid, processes) != top:
            continue
        each = look_at(pid, first.user) or replace(each, state="Z")
        if each.role == "front-end":
            role, number = role_of(names.get(pid, ""))
            each = replace(each, role=role or UNNAMED, number=number)
        yield each


def log_of(pid: int) -> tuple[str, str]:
    """The end of a process's output, and where it is or why it cannot be had."""
    file = within((PROC / str(pid) / "fd" / "1").readlink, Path())
    if not within(file.is_file, False):
        kind = str(file).split(":", 1)[0] if file.name else "what only its user sees"
        return "", f"its output goes to {kind}; `journalctl _PID={pid}` may have it"

    def read() -> str:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - LOG_BYTES))
            return log.read().decode(errors="replace")

    return within(read, ""), str(file)
