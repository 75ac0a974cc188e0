"""Whose fault it most likely is that nothing moves: rules over what was seen."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from vllm_balance.doctor.lines import State
from vllm_balance.doctor.processes import UNNAMED, Process, Status

HANG_S = 5.0
"""A step that lasts longer is taken for a hang."""
STALE_S = 3.0
"""A rank that has not written its status for so long does not run."""
BUSY = 0.5
"""Share of the time in which a main thread that computes runs, or could."""

COLLECTIVE = re.compile(r"distributed|c10d|communicator|hccl|group/exchange\.py")
ON_THE_WAY = re.compile(rf"{COLLECTIVE.pattern}|config/parallel\.py")
"""Functions below the one that says which collective call it is."""
INPUT = "_process_input_queue"
"""Where a rank of vLLM waits that has nothing to do."""
WORKER = re.compile(r"shm_broadcast|multiproc_executor")
LOST = re.compile(
    r"Data parallel balance: .*(no answer|failed|has ended)|died unexpectedly"
)
"""What the log of a server says of the part that it has lost."""


@dataclass(frozen=True)
class Server:
    """What two looks have found."""

    processes: Sequence[Process]
    """The first of them started the others."""
    now: float
    busy: Mapping[int, float]
    """Share of the time in which a main thread ran, or waited for a core, by pid."""
    moved: frozenset[int] = frozenset()
    """Pids of the ranks that have made a step between the looks."""
    stood: Mapping[int, float] = field(default_factory=dict)
    """For how long a rank has been seen with the same stack, by pid."""
    answer: str = ""
    """What is wrong with the front-end's answer."""
    waiting: float | None = 0
    """Requests that the ranks have told the front-end of; None if nobody knows."""
    clients: int = 0
    """Open connections to the API; whether a client waits on one cannot be seen."""
    log: Sequence[str] = ()

    def those(self, role: str) -> list[Process]:
        """Those that live, and those that have just ended."""
        return [each for each in self.processes if each.role == role]

    def option(self, *names: str) -> str | None:
        """The value of an option of the command line."""
        words = [w for each in self.processes[0].arguments for w in each.split("=", 1)]
        # vLLM takes underscores, too.
        words = [w.replace("_", "-") if w.startswith("--") else w for w in words]
        given = dict(pairwise(words))
        return next((given[name] for name in names if name in given), None)

    def number(self, *names: str) -> int | None:
        """The value of an option that is a number; None for another."""
        value = self.option(*names) or ""
        return int(value) if value.isdecimal() else None

    @property
    def port(self) -> int:
        """The port of the API."""
        return self.number("--port") or 8000

    @property
    def shown(self) -> list[tuple[Process, Status]]:
        """The ranks that say what they do."""
        return [(p, p.status) for p in self.those("rank") if p.status]

    @property
    def idle_inside(self) -> list[tuple[Process, Status]]:
        """Ranks that are in no step and yet in a collective call, as in `/resume`."""
        return [x for x in self.shown if x[1].doing == "idle" and waits(x[1])]


@dataclass(frozen=True)
class Verdict:
    """One sentence, and what to do."""

    sentence: str
    do: str = ""
    accused: Sequence[Process] = ()
    """Living ones whose stack tells more."""
    state: State = "bad"


def blame(server: Server) -> Verdict:
    """The first rule that finds somebody; what nobody can know is `unknown`."""
    for rule in (stopped, ended, frozen, silent, late, deaf):
        if verdict := rule(server):
            return verdict
    if server.moved:
        return Verdict("nobody's: steps go on", state="ok")
    if not server.shown or len(server.shown) < len(server.those("rank")):
        found = "not known: there are ranks that do not say what they do"
        do = "py-spy dump --pid PID of each rank; with balance on they say it"
        return Verdict(found, do, server.those("rank"), "unknown")
    if not all(rests(status) for _, status in server.shown):
        found = "nobody's so far: no step lasts long"
        return Verdict(found, "look again", state="unknown")
    size = max(status.size for _, status in server.shown)
    if server.waiting is None or len(server.shown) < size:
        found = "nobody's here: the ranks of this host rest, and wait for requests"
        return Verdict(found, "look at the other hosts, too", state="unknown")
    if server.waiting or server.clients:
        found = (
            f"not known: the ranks rest; they have told of {server.waiting:.0f} "
            f"requests in hand, and {server.clients} connections of clients are open"
        )
        do = "is the server paused (POST /resume)? Else see the stack of the front-end"
        return Verdict(found, do, server.those("front-end"), "unknown")
    return Verdict("nobody's: no request is in hand, and no client there", state="ok")


def stopped(server: Server) -> Verdict | None:
    """A process that a signal or a debugger keeps from running."""
    found = [each for each in server.processes if each.state in "Tt"]
    if not found:
        return None
    times = [server.now - p.status.seen for p in found if p.status]
    since = f" for {max(times):.0f} s" if times else ""
    return Verdict(
        f"{names(found)}, stopped by a signal or a debugger{since}: the others wait",
        f"`kill -CONT {' '.join(str(each.pid) for each in found)}`",
    )


def ended(server: Server) -> Verdict | None:
    """Parts that are not there any more."""
    gone = [each.name for each in server.processes if each.state in "ZX"]
    gone += [name for name in missing(server) if name not in gone]
    if not gone:
        return None
    said = [line.strip() for line in server.log if LOST.search(line)]
    if not said and not server.those("rank"):
        found = "no rank is there (yet), and the log does not say why"
        return Verdict(found, state="unknown")
    sentence = f"what has ended ({', '.join(gone)}): the others cannot go on without"
    if said:
        sentence += f"; the log first said: {said[0][:300]}"
    return Verdict(sentence, "look in the log for the cause, and start again")


def missing(server: Server) -> list[str]:
    """The parts of its own that the first process should have, and has not."""
    first_process = server.processes[0]
    backend = server.option("--data-parallel-backend", "-dpb") or "mp"
    there = {each.number for each in server.those("rank")}
    # An unnamed process may be any part, and a file may say where others are.
    is_told = not server.those(UNNAMED) and "" not in there
    is_told &= server.option("--config") is None
    if first_process.role != "front-end" or backend != "mp" or not is_told:
        return []
    size = server.number("--data-parallel-size", "-dp") or 1
    size = max([size, *(status.size for _, status in server.shown)])
    external = server.number("--data-parallel-rank", "-dpn")
    first = external or server.number("--data-parallel-start-rank", "-dpr") or 0
    local = server.number("--data-parallel-size-local", "-dpl")
    count = size if local is None else local
    ranks = range(first, first + (count if external is None else 1))
    gone = [f"rank {rank}" for rank in ranks if str(rank) not in there]
    leads = "--headless" not in first_process.arguments and not first
    if size > 1 and leads and not server.those("coordinator"):
        gone.append("coordinator")
    return gone


def frozen(server: Server) -> Verdict | None:
    """A rank whose interpreter does not run, though nobody has stopped it."""
    ages = {p.pid: server.now - status.seen for p, status in server.shown}
    found = [p for p, _ in server.shown if ages[p.pid] > STALE_S]
    if not found:
        return None
    return Verdict(
        f"{names(found)}: native code has held the interpreter for "
        f"{max(ages.values()):.0f} s ({how(found, server)})",
        "see the stack of native code: `py-spy dump --native`, or `gdb -p`",
        found,
    )


def silent(server: Server) -> Verdict | None:
    """Ranks of other hosts that do not answer."""
    here = {each.number for each in server.those("rank")}
    gone: dict[str, float] = {}
    for _, status in server.shown:
        for name, (_, since) in status.others.items():
            rank = "0" if name == "store" else name
            if rank not in here and status.seen - since > STALE_S:
                gone[rank] = max(gone.get(rank, 0), server.now - since)
    if not gone:
        return None
    return Verdict(
        f"{elsewhere(gone)}: no heartbeat for {max(gone.values()):.0f} s, so "
        "the process has ended or stopped, or the network is cut",
        "look there with this command, and at the network between the hosts",
    )


def late(server: Server) -> Verdict | None:
    """Ranks that the others wait for in a step."""
    at_work = [each for each in server.shown if not rests(each[1])]
    lasts = {
        p.pid: server.stood.get(p.pid, 0.0)
        if status.doing == "idle"
        else server.now - status.since
        for p, status in at_work
    }
    longest = max(lasts.values(), default=0)
    if longest < HANG_S or server.moved:
        return None
    places = {
        name: place
        for _, status in at_work
        for name, (place, _) in status.others.items()
        if place
    }
    places |= {p.number: said.position for p, said in at_work if said.doing != "idle"}
    wave, step = max(places.values(), default=(0, 0))
    outside = [p for p, said in at_work if not waits(said)]
    behind = {name for name, place in places.items() if place < (wave, step)}
    found = outside or [p for p, _ in at_work if p.number in behind]
    if not outside and (verdict := apart(server, at_work, longest, bool(found))):
        return verdict
    if not found and behind:
        return Verdict(
            f"{elsewhere(behind)}, which has not come as far as the ranks here, who "
            f"wait since {longest:.0f} s",
            "look there with this command",
        )
    if not found:
        return Verdict(
            f"the network's: all ranks here have been in collective calls after step "
            f"{step} of wave {wave} for {longest:.0f} s, and all answer",
            "check GLOO_SOCKET_IFNAME, HCCL_IF_IP and the links; a rank on another "
            "host may still compute: look there, too",
            [p for p, _ in at_work],
        )
    said = next(status for p, status in server.shown if p is found[0])
    wave, step = said.position
    if WORKER.search(said.stack):
        what = "waits for its worker processes"
    elif waits(said):
        what = "is in a collective call that the others have left or not come to"
    elif said.doing == "idle":
        what = f"does not come back from {call(said)} ({how(found, server)})"
    else:
        what = f"does not come back from the model ({how(found, server)})"
    rest = [p.name for p, _ in server.shown if p not in found]
    waiting = f"; {', '.join(rest)} waiting for it" if rest else ""
    return Verdict(
        f"{names(found)}: after step {step} of wave {wave} {what}, for {longest:.0f} s"
        + waiting,
        "see its stack; on an NPU also `npu-smi info` and the plog of its device",
        found,
    )


def apart(
    server: Server,
    at_work: Sequence[tuple[Process, Status]],
    longest: float,
    is_in_order: bool,
) -> Verdict | None:
    """Ranks in collective calls that cannot meet, so that all of them wait for ever.

    Args:
        server: what was seen.
        at_work: the ranks here that do not rest, each in a collective call.
        longest: for how many seconds.
        is_in_order: whether some of them are only steps behind the others.
    """
    calls: dict[str, list[Process]] = {}
    for process, said in at_work:
        calls.setdefault(call(said), []).append(process)
    resting = [p for p, said in server.shown if rests(said)]
    if not resting and (
        len(calls) < 2 or (is_in_order and not server.idle_inside) or "" in calls
    ):
        return None
    parts = [f"{names(found)} in {where or 'one'}" for where, found in calls.items()]
    parts += [f"{names(resting)} at rest"] if resting else []
    return Verdict(
        f"calls that do not meet, for {longest:.0f} s: {' and '.join(parts)}",
        "restart the group. It is a defect: keep the stacks and report them (a request "
        "that comes together with /resume: vLLM's issue 55229)",
        [p for p, _ in at_work],
    )


def call(status: Status) -> str:
    """The function that has made the call in which a rank is; empty if nobody knows."""
    if status.doing == "exchange":
        return "the exchange"
    frames = [f for f in status.stack.split(" < ") if not ON_THE_WAY.search(f)]
    return frames[0].partition("(")[0] if frames else ""


def rests(status: Status) -> bool:
    """Whether a rank waits for requests, or has done so until a moment ago."""
    return status.doing == "idle" and (
        not status.stack or (INPUT in status.stack and not waits(status))
    )


def waits(status: Status) -> bool:
    """Whether a rank is in a collective call, as far as its stack tells."""
    return status.doing == "exchange" or bool(COLLECTIVE.search(status.stack))


def deaf(server: Server) -> Verdict | None:
    """A front-end that does not answer, while no rank is to blame."""
    if not server.answer:
        return None
    found = [*server.those("front-end"), *server.those("API server")]
    return Verdict(
        f"the front-end {server.answer}, while the ranks are well",
        "see its stack: its event loop is busy or waits",
        found[-1:],
    )


def names(processes: Sequence[Process]) -> str:
    """`rank 1 (pid 12), worker 0 (pid 13)`."""
    return ", ".join(f"{each.name} (pid {each.pid})" for each in processes)


def elsewhere(ranks: Collection[str]) -> str:
    """`ranks 2, 3 on another host`."""
    numbers = ", ".join(sorted(ranks, key=int))
    return f"rank{'s' * (len(ranks) > 1)} {numbers} on another host"


def how(processes: Sequence[Process], server: Server) -> str:
    """Whether they compute."""
    if any(server.busy.get(each.pid, 0) > BUSY for each in processes):
        return "it computes without end"
    if any(each.state == "D" for each in processes):
        return "it is in the kernel: a driver does not answer"
    return "it computes nothing, and waits for something else than the other ranks"
