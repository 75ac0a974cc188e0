"""A real server in which nothing moves: the doctor names whose fault it is."""

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import requests

from hanging_device import CALL, FOLDER, GLOO, KERNEL
from vllm_balance.doctor.hang import report
from vllm_server import Server

pytestmark = pytest.mark.slow

DEVICE = {"t0": 0.02, "a": 0.0005, "b": 0.0002, "c": 0.01}
LOOK_S = 120
"""For so long the doctor is asked: a busy machine is slow to hang, and to look."""
NOBODY = "nobody's: steps go on"


@contextlib.contextmanager
def serve(folder, model, balance):
    """Two ranks that compute nothing and end nothing, and clients for both."""
    environment = {
        "PYTHONPATH": str(Path(__file__).parent),
        FOLDER: str(folder),
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "900",
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1",
    }
    options = (
        *("-dp", "2", "--data-parallel-balance", balance, "--async-scheduling"),
        *("--max-num-seqs", "8", "--max-model-len", "1024"),
        *("--scheduler-cls", "hanging_device.Hanging"),
        *("--additional-config", json.dumps({"emulated_device": DEVICE})),
    )
    server = Server(folder, model, *options, environment=environment)
    with server, clients(server):
        yield server


@contextlib.contextmanager
def clients(server):
    """Each rank has work until the end; the ends of the clients tell nothing."""
    ended = threading.Event()

    def ask(rank):
        while not ended.is_set():
            with contextlib.suppress(requests.RequestException):
                if not server.ask(rank, prompt=[5] * 20, max_tokens=100).ok:
                    return

    ranks = [0, 1] * 3
    threads = [threading.Thread(target=ask, args=[r], daemon=True) for r in ranks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()


def is_bad(line):
    return line.state == "bad"


def says(words):
    return lambda line: words in line.found


def doctor(server):
    assert server._process is not None
    return list(report(server._process.pid))


def pids(server):
    """By the name that the doctor gives them."""
    return {
        line.what: int(line.found.split()[1].rstrip(","))
        for line in doctor(server)
        if line.found.startswith("pid ")
    }


def look(server, wanted=is_bad):
    """What the doctor says, once it says what is wanted, or when the time is over."""
    deadline = time.monotonic() + LOOK_S
    while True:
        lines = doctor(server)
        if wanted(lines[-1]) or time.monotonic() > deadline:
            print(*lines, sep="\n")
            return lines


@contextlib.contextmanager
def stopped(server, name):
    pid = pids(server)[name]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def told(server, name):
    file = server.log.parent / name
    file.touch()
    try:
        yield
    finally:
        file.unlink()


@pytest.fixture(scope="module")
def server(tmp_path_factory, moe_model):
    with serve(tmp_path_factory.mktemp("served"), moe_model, "adaptive") as found:
        yield found


FAULTS = {
    "rank 1 stopped": (stopped, "rank 1", ["rank 1 (pid", "stopped by a signal"]),
    "rank 0, which keeps the store": (stopped, "rank 0", ["rank 0 (pid", "stopped by"]),
    "endless kernel": (
        *(told, KERNEL),
        ["rank 1 (pid", "from the model (it computes without", "rank 0 waiting for"],
    ),
    "model call": (
        *(told, CALL),
        ["rank 1 (pid", "from the model (it computes nothing", "rank 0 waiting for it"],
    ),
    "front-end": (stopped, "front-end", ["front-end (pid", "stopped by a signal"]),
    "coordinator": (stopped, "coordinator", ["coordinator (pid", "stopped by"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_hang_is_named_and_nobody_before(server, fault):
    how, name, words = FAULTS[fault]
    assert look(server, says(NOBODY))[-1].found == NOBODY
    with how(server, name):
        *parts, fault_line = look(server)
    assert fault_line.state == "bad"
    assert all(word in fault_line.found for word in words), fault_line
    assert {"front-end", "coordinator", "rank 0", "rank 1"} <= {p.what for p in parts}
    ranks = [part.found for part in parts if part.what.startswith("rank")]
    assert all("wave " in found and ", step " in found for found in ranks)
    assert all("last words `(EngineCore_DP" in found for found in ranks)


def test_gloo_hangs_and_then_a_rank_dies(server):
    """Nothing brings this server back."""
    here = pids(server)
    (server.log.parent / GLOO).touch()
    fault = look(server)[-1]
    assert fault.state == "bad"
    assert "the network's: all ranks here have been in collective calls" in fault.found
    os.kill(here["rank 1"], signal.SIGKILL)
    # Soon afterwards the front-end ends the others, perhaps before anybody has looked.
    fault = look(server, says("what has ended"))[-1]
    assert "rank 1" in fault.found.partition(")")[0]


def test_a_coordinator_that_died_where_nobody_looks(tmp_path, moe_model):
    """With balance off a server does not notice, and no rank says where it is."""
    with serve(tmp_path, moe_model, "off") as server:
        os.kill(pids(server)["coordinator"], signal.SIGKILL)
        fault = look(server, says("coordinator"))[-1]
        server.kill()  # upstream would leave a rank behind
    assert "ended (coordinator)" in fault.found
