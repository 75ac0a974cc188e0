"""Whose fault a hang is, by what was seen; test_hang.py does it on real servers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest
from vllm.v1.core.sched.balance.group import status_file
from vllm.v1.core.sched.balance.group.heartbeats import Heartbeats

from vllm_balance.cli import main
from vllm_balance.doctor import hang, processes
from vllm_balance.doctor.blame import Server, blame
from vllm_balance.doctor.processes import Process, Status, look_at, role_of

NOW = 1000.0
SERVE = ("/opt/bin/python", "/opt/bin/vllm", "serve", "model", "-dp=2")
COLLECTIVE = "wait(distributed/group.py:1)"


def process(role: str, number: str = "", state: str = "S", **said: Any) -> Process:
    """A part of a server; a rank is in a collective call of its model since 10 s."""
    shown = None
    if role == "rank":
        usual = {
            **{"rank": int(number), "size": 2, "position": (0, 5), "doing": "model"},
            **{"since": NOW - 10, "seen": NOW - 0.3, "stack": COLLECTIVE},
        }
        shown = Status(**usual | said)
    pid = 10 + int(number or -9)
    return Process(pid, 1, state, role, number, SERVE, shown, 0.0, "", "0")


def rank(number: int, state: str = "S", **said: Any) -> Process:
    return process("rank", str(number), state, **said)


FRONT, COORDINATOR = process("front-end"), process("coordinator")
BOTH = (rank(0), rank(1))
MODEL, AHEAD = {"stack": "f(models/b.py:3)"}, {"doing": "exchange", "position": (0, 6)}
FAR = {"size": 4, "others": {"2": (None, NOW - 9), "3": (None, NOW - 9)}}
LOCAL = replace(FRONT, arguments=(*SERVE, "-dpl=2"))
IDLE = [rank(number, doing="idle", stack="") for number in (0, 1)]
REST = "wait(lib/threading.py:5) < get(lib/queue.py) < _process_input_queue(v1/c.py:7)"
RESTS = [rank(number, doing="idle", stack=REST) for number in (0, 1)]
# As seen on a server with the race of vLLM's issue 55229.
BARRIER = (
    "all_reduce(distributed/distributed_c10d.py:1) < wrapper(distributed/c10d.py:2) < "
    "has_unfinished_dp(config/parallel.py:3) < resume_scheduler(engine/core.py:4)"
)
FORWARD = f"{COLLECTIVE} < forward(layers/moe.py:1)"
IN_STEP = BARRIER.replace("resume_scheduler", "_has_global_unfinished_reqs")
RESUMES = rank(0, doing="idle", since=NOW - 900, stack=BARRIER)
STOOD = {"stood": {10: 6.0, 11: 6.0}}
CROSSED = "rank 0 (pid 10) in resume_scheduler and rank 1 (pid 11) in _has_global_unfin"

CASES: dict[str, tuple[list[Process], dict[str, Any], str]] = {
    "stopped": ([rank(0, **AHEAD), rank(1, "T")], {}, "rank 1 (pid 11), stopped"),
    "late": ([rank(0, **AHEAD), rank(1, **MODEL)], {}, "rank 1 (pid 11): after step 5"),
    "computes": ([rank(0), rank(1, **MODEL)], {"busy": {11: 0.9}}, "computes without"),
    "waits": ([rank(0), rank(1, **MODEL)], {}, "computes nothing"),
    "network": ([*BOTH], {}, "the network's"),
    "frozen": ([rank(0, seen=NOW - 8), rank(1)], {}, "rank 0 (pid 10): native code"),
    "gone": ([rank(0)], {}, "ended (rank 1)"),
    "zombie": ([rank(0), rank(1, "Z")], {}, "ended (rank 1)"),
    "said": ([], {"log": ["EngineCore_DP1 died unexpectedly"]}, "said: EngineCore_DP1"),
    "starts": ([], {}, "no rank is there (yet)"),
    "workers": ([rank(0, stack="a(v1/shm_broadcast.py:4)"), rank(1)], {}, "its worker"),
    "deaf": (IDLE, {"answer": "is deaf"}, "the front-end is de"),
    "resumes": ([RESUMES, rank(1, stack=IN_STEP)], STOOD, CROSSED),
    "resumes, both idle": (
        *([RESUMES, rank(1, doing="idle", stack=IN_STEP)], STOOD, CROSSED),
    ),
    "resumes alone": ([RESUMES, RESTS[1]], STOOD, "rank 1 (pid 11) at rest"),
    "a wave that one was not told of": (
        *([rank(0), RESTS[1]], {}),
        "rank 0 (pid 10) in one and rank 1 (pid 11) at rest",
    ),
    "two calls of a step": (
        *([rank(0, stack=FORWARD), rank(1, stack=IN_STEP)], {}),
        "rank 0 (pid 10) in forward and rank 1 (pid 11) in _has_global_unfinished_reqs",
    ),
    "loads weights": (
        *([rank(0, doing="idle", stack="load(models/b.py:1)"), rank(1)], STOOD),
        "rank 0 (pid 10): after step 5 of wave 0 does not come back from load",
    ),
    "moves": ([*BOTH], {"moved": frozenset({10})}, "nobody's: steps go on"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_right_one_is_named(case):
    ranks, seen, words = CASES[case]
    server = Server((FRONT, COORDINATOR, *ranks), NOW, **{"busy": {}} | seen)
    assert words in blame(server).sentence


UNKNOWN: dict[str, tuple[list[Process], dict[str, Any], str]] = {
    "has just resumed": ([RESUMES, RESTS[1]], {"stood": {10: 1.0}}, "look again"),
    "balance is off": ([replace(each, status=None) for each in BOTH], {}, "py-spy"),
    "names are cut": (
        *([replace(each, status=None, number="") for each in BOTH], {}),
        "py-spy",
    ),
    "requests": (RESTS, {"waiting": 2}, "POST /resume"),
    "nobody counts": (RESTS, {"waiting": None}, "other hosts"),
    "a client": (RESTS, {"clients": 1}, "POST /resume"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_nobody_can_know_is_not_well(case):
    ranks, seen, do = UNKNOWN[case]
    verdict = blame(Server((FRONT, COORDINATOR, *ranks), NOW, **{"busy": {}} | seen))
    assert (verdict.state, do in verdict.do) == ("unknown", True), verdict


def test_ranks_that_rest_are_well_where_no_client_is():
    assert blame(Server((FRONT, COORDINATOR, *RESTS), NOW, {})).state == "ok"
    one = [replace(RESTS[0], status=RESTS[0].status._replace(size=3))]
    server = Server((LOCAL, COORDINATOR, *one, RESTS[1]), NOW, {})
    assert "look at the other hosts" in blame(server).do


def test_a_missing_coordinator_and_ranks_of_other_hosts_are_named():
    assert "ended (coordinator)" in blame(Server((FRONT, *BOTH), NOW, {})).sentence
    ranks = rank(0, **FAR), rank(1, **FAR)
    for told in ("-dpl=2", "--data_parallel_size_local=2", "--config=a.yaml"):
        front = replace(FRONT, arguments=(*SERVE, told))
        said = blame(Server((front, COORDINATOR, *ranks), NOW, {})).sentence
        assert said.startswith("ranks 2, 3 on another host: no heartbeat for 9 s")


WHERE = ("--uds=a", "--ssl_keyfile=a", "--config=a.yaml", "")


@pytest.mark.parametrize("told", WHERE)
def test_a_front_end_that_cannot_be_asked_is_not_called_deaf(
    told, tmp_path, monkeypatch
):
    """By its options, or because it is in a network of its own."""
    for each in ("self", "1") if not told else ():
        (tmp_path / each / "ns").mkdir(parents=True)
        (tmp_path / each / "ns/net").symlink_to(f"net:[{each}]")
        monkeypatch.setattr(processes, "PROC", tmp_path)
    front = replace(FRONT, arguments=(*SERVE, told))
    assert hang.ask(Server([front], NOW, {})) == ("", None)


def test_what_a_rank_writes_is_read():
    """By another process, and with what is late."""
    now = time.monotonic()
    written = status_file.Status("exchange", 3, 121, now - 10)
    heard = Heartbeats(1, 4)
    heard.hear({0: "5 3 121", 1: "5 3 121", 2: "7 3 120", 3: "left"}, 5, now)
    others = {**heard.late(written.position, now), "store": (None, now)}
    read = Status.read(status_file.text_of(written, 1, 4, others) + "behind it")
    assert read is not None
    assert (read.rank, read.size, read.position) == (1, 4, (3, 121))
    assert read.others == {"2": ((3, 120), now), "3": (None, now), "store": (None, now)}
    assert "text_of(group/status_file.py" in read.stack
    for other in ("no JSON", "[1]", "{}", '{"others": 1}', "[" * 100_000):
        assert Status.read(other) is None


def test_roles_are_read_from_names_that_may_be_cut():
    assert role_of("EngineCore_DP12") == ("rank", "12")
    assert role_of("EngineCore") == ("rank", "0")
    assert role_of("EngineCor") == ("rank", "")
    assert role_of("DPCoordin") == ("coordinator", "")
    assert role_of("Worker_DP0_TP1") == ("worker", "_DP0_TP1")
    assert role_of("other") == ("", "")


def test_a_process_that_computes_is_told_from_one_that_sleeps():
    started, sleeps = "print('started', flush=True)", "import time; time.sleep(600)"
    for code, least, most in (("while True: 0", 0.5, 9), (sleeps, 0, 0.3)):
        command = [sys.executable, "-c", f"{started}\n{code}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout
            assert child.stdout.readline()
            before, began = look_at(child.pid), time.monotonic()
            time.sleep(0.5)
            after = look_at(child.pid)
            took = time.monotonic() - began
            child.kill()
        assert before is not None
        assert after is not None
        assert least <= (after.wanted_s - before.wanted_s) / took <= most
    assert look_at(child.pid) is None
    me = look_at(os.getpid())
    assert me is not None
    assert me.parent == os.getppid()


def test_what_is_not_known_is_no_success(capsys):
    """A script that asks only for the status must not take it for health."""
    ask = ["doctor", "--pid", str(os.getpid())]
    assert main(ask) == 1
    said = capsys.readouterr().out
    assert "unknown  pid" in said
    assert "another program" in said
    assert main([*ask, "--fail-on", "bad"]) == 0
