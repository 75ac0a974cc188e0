"""A look at a server in which nothing moves; it changes nothing, and asks nobody twice.

States and files are read from `/proc`; only the front-end is asked.
"""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Iterator
from dataclasses import replace

from vllm_balance.doctor.blame import HANG_S, STALE_S, Server, blame
from vllm_balance.doctor.lines import Line, State
from vllm_balance.doctor.processes import (
    Process,
    all_processes,
    clients_of,
    family,
    is_reached,
    log_of,
    look_at,
    top_of,
    within,
)

BETWEEN_S = 1.2
"""Between two looks: longer than the period of a status file."""
ANSWER_S = 3.0
"""How long the front-end may take."""
ANSWER_BYTES = 1 << 24
"""What is read of its metrics; a rank has some 50 kB."""
STATES = {"R": "running", "D": "in the kernel"}
STATES |= dict.fromkeys("Tt", "stopped") | dict.fromkeys("ZX", "ended")
DOING = {"model": "in the model", "exchange": "in the exchange"}


def report(pid: int | None) -> Iterator[Line]:
    """Look at a server of this machine.

    Args:
        pid: of any of its processes; None or 0 if there is only one server.
    """
    processes = all_processes()
    parts = [each for each, process in processes.items() if process.role]
    if pid and pid not in parts:
        found = "another program" if pid in processes else "no process (it has ended)"
        do = "its log names who was to blame: look for `Data parallel balance:`"
        yield Line(f"pid {pid}", "unknown", found, "one of `vllm serve`", do)
        return
    tops = {top_of(each, processes) for each in ([pid] if pid else parts)}
    if len(tops) != 1:
        seen = ", ".join(map(str, sorted(tops))) or "none"
        yield Line("servers", "unknown", f"pids {seen}", "one", "give `--pid PID`")
        return
    server = examine(min(tops), processes)
    yield from (describe(server, each) for each in server.processes)
    if server.answer:
        yield Line("front-end's answer", "bad", server.answer)
    verdict = blame(server)
    for each in verdict.accused[:2]:
        told = f"`py-spy dump --nonblocking --pid {each.pid}` shows it"
        yield Line(f"stack of {each.name}", "ok", told)
    yield Line("whose fault", verdict.state, verdict.sentence, do=verdict.do)


def examine(top: int, processes: dict[int, Process]) -> Server:
    """Look twice, and ask the front-end in between.

    How long an idle rank has been in a collective call nobody has written down, so that
    is looked at for as long as a hang lasts.
    """
    server = look_twice(top, processes, BETWEEN_S)
    return look_twice(top, processes, HANG_S) if server.idle_inside else server


def look_twice(top: int, processes: dict[int, Process], seconds: float) -> Server:
    """What the second look finds, that long after the first, and what has changed."""
    began = time.monotonic()
    before = list(family(top, processes, log_of(top)[0]))
    first_look = Server(before, began, {})
    answer, waiting = ask(first_look)
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    # One that has gone since then has ended, too; its title goes first.
    user = before[0].user
    now = [look_at(each.pid, user) or replace(each, state="Z") for each in before]
    took = time.monotonic() - began
    pairs = list(zip(now, before, strict=True))
    return Server(
        processes=[
            replace(n, role=b.role, number=b.number, arguments=b.arguments)
            for n, b in pairs
        ],
        now=began + took,
        busy={n.pid: (n.wanted_s - b.wanted_s) / took for n, b in pairs},
        moved=frozenset(
            n.pid
            for n, b in pairs
            if n.status and b.status and n.status.position != b.status.position
        ),
        stood={
            n.pid: took
            for n, b in pairs
            if n.status and b.status and n.status.stack == b.status.stack
        },
        answer=answer,
        waiting=waiting,
        clients=clients_of(top, first_look.port),
        log=log_of(top)[0].splitlines(),
    )


def ask(server: Server) -> tuple[str, float | None]:
    """What is wrong with the front-end's answer, and its requests in hand.

    None for requests where nobody here knows of them.
    """
    first = server.processes[0]
    if first.role != "front-end" or "--headless" in first.arguments:
        return "", None
    has_no_http = server.option("--uds", "--ssl-keyfile", "--ssl-certfile")
    may_be_elsewhere = server.option("--config") and not server.option("--port")
    if has_no_http or may_be_elsewhere or not is_reached(first.pid):
        return "", None
    host = (server.option("--host") or "127.0.0.1").strip("[]")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    client = http.client.HTTPConnection(host, server.port, timeout=ANSWER_S)

    def metrics() -> tuple[str, str]:
        try:
            client.request("GET", "/metrics")
            answer = client.getresponse().read(ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            return str(error), ""
        return "", answer.decode(errors="replace")

    # All together: bytes that come one by one keep no single wait from ending.
    problem, text = within(metrics, ("no end of its answer", ""), ANSWER_S + 1)
    client.close()
    if problem:
        where = f"{host}, port {server.port}, in {ANSWER_S:g} s ({problem})"
        return f"does not answer on {where}", None
    number = r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\d+(?:\.\d+)?)$"
    found = re.findall(number, text, re.M)
    return "", sum(map(float, found)) if found else None


def describe(server: Server, process: Process) -> Line:
    """One process: is it there, what does it do, for how long, its last words."""
    is_there = process.state not in "ZX"
    said = [f"pid {process.pid}, {STATES.get(process.state, 'sleeping')}"]
    if process.waits_in and process.state in "SD":
        said[0] += f" in {process.waits_in}"
    if status := process.status:
        wave, step = status.position
        does = DOING.get(status.doing, status.doing)
        lasts = server.now - status.since
        said.append(f"wave {wave}, step {step}, {does} for {lasts:.1f} s")
        if server.now - status.seen > STALE_S:
            said.append(f"has not run for {server.now - status.seen:.1f} s")
        if status.stack:
            said.append(f"at {status.stack}")
    elif process.role == "rank" and is_there:
        said.append(
            "wave and step are not to be found: balance is off, it has just started, "
            "or it belongs to another user"
        )
    if is_there:
        said.append(f"last words {last_words(process)}")
    state: State = "ok" if is_there and process.state not in "Tt" else "bad"
    return Line(process.name, state, "; ".join(said))


def last_words(process: Process) -> str:
    """The last line of the log that this process has written."""
    log, where = log_of(process.pid)
    own = re.findall(rf"^.*\bpid={process.pid}\).*$", log, re.M)
    if not log:
        return f"not to be found: {where}"
    return f"`{own[-1].strip()[:200]}` in {where}" if own else f"none in {where}"
