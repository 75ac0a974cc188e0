"""A diagnosis of each process of a server, from /proc and from the ranks' status files.

No process has to answer, so it works in a hang, too. It shows what each process does,
and not which is at fault: for that there is `py-spy dump --pid PID`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from vllm_balance.doctor.diagnosis import Diagnosis, State

PROC = Path("/proc")
READ_BYTES = 1 << 18
"""Largest part of a file that is read, for any process may have written it."""
LOOK_S = 1.0
"""Longest time to read from /proc, where the kernel may wait for a driver."""
LONG_S = 5.0
"""A step that lasts longer gets a warning."""
STALE_S = 3.0
"""A rank writes its status twice per second while its interpreter runs."""
AS_ROOT = "ask as its user, or as root"
STATUS_FILE = "/memfd:vllm-balance status"
ROLES = {
    r"EngineCor(?:e(?:_DP(\d+))?)?": "rank",
    r"DPCoordin(?:ator)?()": "coordinator",
    r"A(?:PI|pi)Server(?:_(\d+))?": "API server",
    r"Worker(\S*)": "worker",
}
"""Roles by the beginning of a process name, which the kernel truncates."""
STATES = {"R": "running", "D": "in the kernel"}
STATES |= dict.fromkeys("Tt", "stopped") | dict.fromkeys("ZX", "ended")
DOING = {"model": "in the model", "exchange": "in the exchange"}

Answer = TypeVar("Answer")


class Status(NamedTuple):
    """The status that a rank writes; times are of the monotonic clock.

    `vllm.v1.core.sched.balance` writes it into a file in memory.
    """

    rank: int
    size: int
    wave: int
    step: int
    """The last step that has ended."""
    doing: str
    """model, exchange or idle"""
    since: float
    seen: float
    """When the status was written."""
    stack: str = ""

    @classmethod
    def read(cls, text: str) -> Status | None:
        """The status in a text; None if the text has none.

        The text may have further bytes behind it, and may come from any process.
        """
        try:
            fields, _ = json.JSONDecoder().raw_decode(text)
            return cls(
                rank=int(fields["rank"]),
                size=int(fields["size"]),
                wave=int(fields["wave"]),
                step=int(fields["step"]),
                doing=str(fields["doing"]),
                since=float(fields["since"]),
                seen=float(fields["seen"]),
                stack=str(fields.get("stack", "")),
            )
        except (ArithmeticError, AttributeError, LookupError, RecursionError):
            return None
        except (TypeError, ValueError):
            return None


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    state: str
    """As in `ps`: R runs, S sleeps, D is in the kernel, T is stopped, Z has ended."""
    role: str
    """`rank`, `coordinator`, `API server`, `worker`, `front-end`; empty for others."""
    number: str
    waits_in: str
    """The function of the kernel in which its main thread sleeps."""
    status: Status | None


def report(pid: int | None) -> Iterator[Diagnosis]:
    """Look at a server of this machine.

    Args:
        pid: of any of its processes; None or 0 if there is only one server.
    """
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]
    processes = {n: seen for n in pids if (seen := look_at(n)) is not None}
    parts = {n: process for n, process in processes.items() if process.role}
    if pid and pid not in parts:
        found = "another program" if pid in processes else absence(pid)
        do = "its log names who failed: look for `Data parallel balance:`"
        yield Diagnosis(f"pid {pid}", "bad", found, "one of `vllm serve`", do)
        return
    tops = {top_of(n, parts) for n in ([pid] if pid else parts)}
    if len(tops) != 1:
        servers = ", ".join(map(str, sorted(tops)))
        found, do = f"pids {servers}", "give `--pid PID`"
        if not tops:
            found, do = "none", "its log names who failed, if it has ended"
            if 1 not in processes:
                found, do = "none, of those that this user can see (hidepid)", AS_ROOT
        yield Diagnosis("servers", "bad", found, "one", do)
        return
    now = time.monotonic()
    members = [p for p in parts.values() if top_of(p.pid, parts) in tops]
    yield from (describe(member, now) for member in members)
    statuses = [member.status for member in members if member.status]
    if local_ranks := {status.rank for status in statuses}:
        size = max(status.size for status in statuses)
        absent = sorted(set(range(size)) - local_ranks)
        found = f"{len(local_ranks)} of {size} are on this host"
        do = ""
        if absent:
            found += f", not {', '.join(map(str, absent))}"
            do = "look on the other hosts, too; one that was here has ended"
        yield Diagnosis("ranks", "ok", found, do=do)


def absence(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return "no process (it has ended)"
    except PermissionError:
        pass
    return f"a process that this user cannot see (hidepid); {AS_ROOT}"


def describe(process: Process, now: float) -> Diagnosis:
    parts = [f"pid {process.pid}, {STATES.get(process.state, 'sleeping')}"]
    if process.waits_in and process.state in "SD":
        parts[0] += f" in {process.waits_in}"
    state: State = "ok"
    do = ""
    if status := process.status:
        seconds = now - status.since
        activity = DOING.get(status.doing, status.doing)
        parts.append(
            f"wave {status.wave}, step {status.step}, {activity} for {seconds:.1f} s"
        )
        if status.stack:
            parts.append(f"at {status.stack}")
        if status.doing != "idle" and seconds > LONG_S:
            state, do = "warn", f"py-spy dump --nonblocking --pid {process.pid}"
        if now - status.seen > STALE_S:
            # Stopped, or native code holds the interpreter.
            parts.append(f"has not run for {now - status.seen:.1f} s")
            state, do = "bad", f"py-spy dump --native --pid {process.pid}"
    elif process.role == "rank" and process.state not in "ZX":
        parts.append("says nothing: balance is off, or it is another user's")
        do = f"py-spy dump --pid {process.pid}"
    if process.state in "Tt":
        state, do = "bad", f"kill -CONT {process.pid}: the others wait for it"
    elif process.state in "ZX":
        state, do = "bad", "look in the log for the cause, and start again"
    return Diagnosis(
        f"{process.role} {process.number}".strip(), state, "; ".join(parts), do=do
    )


def within(look: Callable[[], Answer], otherwise: Answer) -> Answer:
    """What `look` returns, or `otherwise` if it fails or takes too long."""
    answer = [otherwise]

    def run() -> None:
        with contextlib.suppress(OSError, ValueError):
            answer[0] = look()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LOOK_S)
    return answer[0]


def read_file(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(READ_BYTES).decode(errors="replace")


def look_at(pid: int) -> Process | None:
    folder = PROC / str(pid)

    def read(name: str) -> str:
        return within(lambda: read_file(folder / name), "")

    if not (stat := read("stat")):
        return None
    comm, fields = stat[stat.index("(") + 1 :].rsplit(")", 1)
    state, parent = fields.split()[:2]
    role, number = _role(tuple(filter(None, read("cmdline").split("\0"))), comm)
    status = within(lambda: _status(folder), None) if role else None
    if status is not None:
        role, number = "rank", str(status.rank)
    return Process(
        pid, int(parent), state, role, number, read("wchan").strip("0"), status
    )


def _role(arguments: tuple[str, ...], comm: str) -> tuple[str, str]:
    for word in (*arguments[:1], comm):
        if "::" in word:
            return role_of(word.split("::", 1)[1])
    programs = {word.rsplit("/", 1)[-1] for word in arguments}
    # A forked process may keep the title of the front-end.
    served = "serve" in arguments and {"vllm", "vllm.entrypoints.cli.main"} & programs
    return ("front-end" if served else ""), ""


def role_of(name: str) -> tuple[str, str]:
    for pattern, role in ROLES.items():
        if match := re.match(pattern, name):
            return role, match[1] or ("0" if name == "EngineCore" else "")
    return "", ""


def _status(folder: Path) -> Status | None:
    files = (folder / "fd").iterdir()
    status_files = (f for f in files if str(f.readlink()).startswith(STATUS_FILE))
    return next((Status.read(read_file(file)) for file in status_files), None)


def top_of(pid: int, parts: Mapping[int, Process]) -> int:
    """The first process of the server that this one belongs to."""
    while (parent := parts.get(parts[pid].parent)) is not None:
        pid = parent.pid
    return pid
