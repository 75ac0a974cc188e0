"""The processes of a server, as the kernel shows them: nobody has to answer."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

PROC = Path("/proc")
TAIL_BYTES = 1 << 18
LOOK_S = 1.0
"""How long the kernel may take: a title lies in the memory of its process."""

Answer = TypeVar("Answer")

ROLES = {
    r"::EngineCore_DP(\d+)": "rank",
    r"::EngineCore": "rank",
    r"::DPCoordinator": "coordinator",
    r"::APIServer_(\d+)": "API server",
    r"::Worker(\S*)": "worker",
}
SHORT = {"::EngineCor": "rank", "::DPCoordin": "coordinator", "::APIServer": "server"}
"""What is left of the title of a process that has ended."""

PLACARD = re.compile(
    r" of (\d+): wave (\d+), step (\d+), (\w+) since ([\d.]+), seen ([\d.]+)"
    r"(?:; others ([^;]*))?(?:; at (.*))?"
)


@dataclass(frozen=True)
class Placard:
    """What a rank says in the title of its process; times are of the monotonic clock.

    Written by `vllm.v1.core.sched.balance.group.placard`.
    """

    size: int
    wave: int
    step: int
    doing: str
    """model, exchange or idle"""
    since: float
    seen: float
    """When it was written."""
    others: dict[str, tuple[tuple[int, int] | None, float]] = field(
        default_factory=dict
    )
    """Of ranks that are late, and of the store: where they are, and since when."""
    stack: str = ""

    @classmethod
    def read(cls, title: str) -> Placard | None:
        """None if the title has none."""
        if not (found := PLACARD.search(title)):
            return None
        size, wave, step, doing, since, seen, others, stack = found.groups()
        late = {}
        for word in (others or "").split():
            if entry := re.fullmatch(r"(\w+)(?:=(-?\d+)/(-?\d+)|=\w+)?@([\d.]+)", word):
                name, at_wave, at_step, changed = entry.groups()
                place = (int(at_wave), int(at_step)) if at_wave else None
                late[name] = place, float(changed)
        numbers = (int(size), int(wave), int(step))
        return cls(*numbers, doing, float(since), float(seen), late, stack or "")

    @property
    def position(self) -> tuple[int, int]:
        """Rises with each step."""
        return self.wave, self.step


@dataclass(frozen=True)
class Process:
    """One process at one moment."""

    pid: int
    parent: int
    state: str
    """As in `ps`: R runs, S sleeps, D is in the kernel, T is stopped, Z has ended."""
    role: str
    """`rank`, `coordinator`, `API server`, `worker`, `front-end`; empty: no part."""
    number: str = ""
    arguments: tuple[str, ...] = ()
    placard: Placard | None = None
    ticks: int = 0
    """Processor time of its main thread."""
    waits_in: str = ""
    """The function of the kernel in which its main thread sleeps."""

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.role} {self.number}".strip()


def within(seconds: float, look: Callable[[], Answer], otherwise: Answer) -> Answer:
    """What `look` returns, or `otherwise` if it fails or takes longer."""
    found = [otherwise]

    def run() -> None:
        with contextlib.suppress(OSError, ValueError):
            found[0] = look()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0]


def look_at(pid: int) -> Process | None:
    """The process; None if there is none."""
    folder = PROC / str(pid)
    stat = within(LOOK_S, (folder / "stat").read_text, "")
    if not stat:
        return None
    comm, rest = stat[stat.index("(") + 1 :].rsplit(")", 1)
    state, parent = rest.split()[:2]
    # Of a process in the kernel even the title may be out of reach.
    words = within(LOOK_S, (folder / "cmdline").read_bytes, b"").split(b"\0")
    arguments = tuple(word.decode(errors="replace") for word in words if word)
    title = " ".join(arguments)
    role, number = _role(arguments, title, comm)
    main = within(LOOK_S, (folder / "task" / str(pid) / "stat").read_text, stat)
    times = main.rsplit(")", 1)[1].split()[11:13]
    return Process(
        pid=pid,
        parent=int(parent),
        state=state,
        role=role,
        number=number,
        arguments=arguments,
        placard=Placard.read(title),
        ticks=sum(map(int, times)),
        waits_in=within(LOOK_S, (folder / "wchan").read_text, "").strip("0"),
    )


def _role(arguments: tuple[str, ...], title: str, comm: str) -> tuple[str, str]:
    for pattern, role in ROLES.items():
        if found := re.search(pattern, title):
            return role, "".join(found.groups()) or ("0" if role == "rank" else "")
    if "serve" in arguments and any(
        word.startswith("vllm.entrypoints") or word.rsplit("/", 1)[-1] == "vllm"
        for word in arguments
    ):
        return "front-end", ""
    if not arguments:
        return next((role for k, role in SHORT.items() if k in comm), ""), ""
    return "", ""


def all_processes() -> dict[int, Process]:
    """Everything that runs on this machine, as far as it can be seen."""
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]
    return {pid: found for pid in pids if (found := look_at(pid)) is not None}


def top_of(pid: int, processes: dict[int, Process]) -> int:
    """The first process of the server that this one belongs to."""
    while (parent := processes.get(processes[pid].parent)) and parent.role:
        pid = parent.pid
    return pid


def family(top: int, processes: dict[int, Process]) -> Iterator[Process]:
    """The process and all that it started, without those that are no part of vLLM."""
    if processes[top].role:
        yield processes[top]
    for process in processes.values():
        if process.parent == top and process.pid != top:
            yield from family(process.pid, processes)


def log_of(pid: int) -> tuple[list[str], str]:
    """The last lines of a process's output, or why they cannot be had."""
    file = within(LOOK_S, (PROC / str(pid) / "fd" / "1").readlink, Path())
    if not within(LOOK_S, file.is_file, False):
        kind = str(file).split(":", 1)[0]
        return [], f"its output goes to {kind}; `journalctl _PID={pid}` may have it"

    def read() -> bytes:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - TAIL_BYTES))
            return log.read()

    return within(LOOK_S, read, b"").decode(errors="replace").splitlines(), str(file)
