"""A look at a server in which nothing moves; it changes nothing, and asks nobody twice.

States and files are read from `/proc`; only the front-end is asked.
"""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from vllm_balance.doctor.blame import STALE_S, Server, blame
from vllm_balance.doctor.lines import Line, State
from vllm_balance.doctor.processes import (
    Process,
    all_processes,
    family,
    log_of,
    look_at,
    top_of,
)

BETWEEN_S = 1.2
"""Between two looks: longer than the period of a placard."""
ANSWER_S = 3.0
"""How long the front-end may take."""
STACK_S = 20.0
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
        yield Line(f"stack of {each.name}", "ok", stack(each))
    yield Line("whose fault", verdict.state, verdict.sentence, do=verdict.do)


def examine(top: int, processes: dict[int, Process]) -> Server:
    """Look twice, and ask the front-end in between."""
    began = time.monotonic()
    before = list(family(top, processes, log_of(top)[0]))
    answer, waiting = ask(Server(before, began, {}))
    time.sleep(max(0.0, began + BETWEEN_S - time.monotonic()))
    # One that has gone since then has ended, too; its title goes first.
    now = [look_at(each.pid) or replace(each, state="Z") for each in before]
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
            if n.placard and b.placard and n.placard.position != b.placard.position
        ),
        answer=answer,
        waiting=waiting,
        log=log_of(top)[0].splitlines(),
    )


def ask(server: Server) -> tuple[str, float]:
    """What is wrong with the front-end's answer, and its requests in hand."""
    first = server.processes[0]
    if first.role != "front-end" or "--headless" in first.arguments:
        return "", 0
    host = server.option("--host") or "127.0.0.1"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    port = server.number("--port") or 8000
    client = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    try:
        client.request("GET", "/metrics")
        text = client.getresponse().read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"does not answer on {host}:{port} in {ANSWER_S:g} s ({error})", 0
    finally:
        client.close()
    number = r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$"
    return "", sum(map(float, re.findall(number, text, re.M)))


def describe(server: Server, process: Process) -> Line:
    """One process: is it there, what does it do, for how long, its last words."""
    is_there = process.state not in "ZX"
    said = [f"pid {process.pid}, {STATES.get(process.state, 'sleeping')}"]
    if process.waits_in and process.state in "SD":
        said[0] += f" in {process.waits_in}"
    if placard := process.placard:
        wave, step = placard.position
        does = DOING.get(placard.doing, placard.doing)
        lasts = server.now - placard.since
        said.append(f"wave {wave}, step {step}, {does} for {lasts:.1f} s")
        if server.now - placard.seen > STALE_S:
            said.append(f"has not run for {server.now - placard.seen:.1f} s")
        if placard.stack:
            said.append(f"at {placard.stack}")
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


def stack(process: Process) -> str:
    """What py-spy sees of the main thread."""
    beside = Path(sys.executable).with_name("py-spy")
    program = shutil.which("py-spy") or shutil.which(beside)
    if program is None:
        return "py-spy is not installed (`pip install py-spy` where it does no harm)"
    command = [program, "dump", "--nonblocking", "--pid", str(process.pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STACK_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy could not tell: {error}"
    blocks = done.stdout.split("\nThread ")
    main = next((block for block in blocks if "MainThread" in block), "")
    frames = [line.strip() for line in main.splitlines()[1:9]]
    return " < ".join(frames) or f"py-spy could not tell: {done.stderr.strip()[:200]}"
