"""What the processes of a server do, by real ones that only look like vLLM's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_balance.cli import main
from vllm_balance.doctor import serve, server
from vllm_balance.doctor.diagnosis import Diagnosis, show
from vllm_balance.doctor.machine import Machine
from vllm_balance.doctor.plan import Plan
from vllm_balance.doctor.server import Status, look_at, report, role_of

RANK = r"""
import os, sys, time
open("/proc/self/comm", "w").write("VLLM::EngineCor")
file = os.memfd_create("vllm-balance status")
os.write(file, sys.argv[1].encode())
os.ftruncate(file, 1 << 31)  # more than anybody may read
os.write(1, b"%d\n" % os.getpid())  # in one piece
time.sleep(600)
"""
FRONT_END = """
import subprocess, sys
_, program, python, _, *texts = sys.argv
for rank, said in enumerate(texts):
    words = [f"VLLM::EngineCore_DP{rank}", "-c", program, said]
    subprocess.Popen(words, executable=python)
sys.stdin.read()
"""


@contextlib.contextmanager
def served(*said):
    """The pids of a front-end and of ranks that say this of themselves."""
    now = time.monotonic()
    usual = {"size": len(said), "wave": 3, "step": 5, "doing": "idle"}
    usual |= {"since": now, "seen": now + 600, "stack": "f(a/b.py:1)"}
    texts = [json.dumps(usual | {"rank": i} | each) for i, each in enumerate(said)]
    front = subprocess.Popen(
        ["vllm", "-c", FRONT_END, RANK, sys.executable, "serve", *texts],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert front.stdout
    started = sorted(int(front.stdout.readline()) for _ in said)
    ranks = {look_at(pid).number: pid for pid in started}
    try:
        yield front.pid, ranks
    finally:
        for pid in (*ranks.values(), front.pid):
            os.kill(pid, signal.SIGKILL)
        front.communicate()


def looked_at(pid):
    return {line.what: line for line in report(pid)}


def test_a_row_for_each_process_and_what_is_wrong_where_it_is_certain():
    now = time.monotonic()
    then = now - 7_000_000  # whatever the machine does meanwhile
    late = {"doing": "model", "since": then}
    with served({}, late, {"seen": then, "size": 5}) as (front, ranks):
        lines = looked_at(ranks["1"])
        assert {*lines} == {"front-end", "rank 0", "rank 1", "rank 2", "ranks"}
        assert lines["front-end"].found.startswith(f"pid {front}, sleeping")
        assert "wave 3, step 5, idle for" in lines["rank 0"].found
        assert "in the model for 70000" in lines["rank 1"].found
        assert "at f(a/b.py:1)" in lines["rank 1"].found
        assert f"--pid {ranks['1']}" in lines["rank 1"].do
        assert "has not run for 70000" in lines["rank 2"].found
        states = [lines[f"rank {number}"].state for number in range(3)]
        assert states == ["ok", "warn", "bad"]
        assert lines["ranks"].found == "3 of 5 are on this host, not 3, 4"


def test_what_was_stopped_or_has_ended_is_named():
    with served({}, {}) as (front, ranks):
        os.kill(ranks["0"], signal.SIGSTOP)
        os.kill(ranks["1"], signal.SIGKILL)
        while look_at(ranks["1"]).state != "Z" or look_at(ranks["0"]).state != "T":
            time.sleep(0.01)
        lines = looked_at(front)
        assert f"kill -CONT {ranks['0']}" in lines["rank 0"].do
        assert lines["rank"].found == f"pid {ranks['1']}, ended"
        assert {lines["rank 0"].state, lines["rank"].state} == {"bad"}
        assert "not 1" in lines["ranks"].found


def test_a_process_that_is_no_server_is_no_success(capsys):
    """A script that asks only for the status must not take it for health."""
    assert main(["doctor", "--pid", str(os.getpid())]) == 1
    said = capsys.readouterr().out
    assert "bad      pid" in said
    assert "another program" in said


def test_a_process_that_cannot_be_seen_has_not_ended(monkeypatch, tmp_path):
    """As where /proc shows a user only its own ones (hidepid)."""
    (ended := subprocess.Popen(["true"])).wait()
    monkeypatch.setattr(server, "PROC", tmp_path)
    (line,) = report(os.getpid())
    assert line.found.startswith("a process that this user cannot see")
    (line,) = report(ended.pid)
    assert line.found == "no process (it has ended)"
    (line,) = report(None)
    assert line.found == "none, of those that this user can see (hidepid)"


def test_a_host_without_ranks_is_told_so():
    machine = Machine(Path("/"), {}, None, Plan())
    line, *_ = serve._lines(machine, Plan(model="m", ranks=4, local_ranks=0))
    assert line.found == "m, none of 4 on this host"


def test_a_status_that_a_rank_did_not_write_is_none(monkeypatch):
    for other in ("no JSON", "[1]", "{}", '{"rank": []}'):
        assert Status.read(other) is None

    def too_deep(*_):
        raise RecursionError

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", too_deep)
    assert Status.read("{}") is None


def test_roles_are_read_from_names_that_may_be_cut():
    names = "EngineCore_DP12", "EngineCore", "EngineCor", "DPCoordin", "other"
    roles = ("rank", "12"), ("rank", "0"), ("rank", ""), ("coordinator", ""), ("", "")
    assert tuple(map(role_of, names)) == roles


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b1m", "\u202e", "\udc80"])
def test_no_text_moves_the_cursor(text):
    line = Diagnosis(f"rank{text}", "bad", f"at {text}f(a)", text, text)
    assert str(line).isprintable()
    assert show([line], True).replace("\n", "").isprintable()
    assert json.loads(show([line], True))["lines"][0]["expected"] == text
