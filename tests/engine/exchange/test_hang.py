"""A real server in which nothing moves: the doctor says what each rank does."""

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import requests

from hanging_device import FILE
from vllm_balance.doctor.server import report
from vllm_server import Server

pytestmark = [pytest.mark.slow, pytest.mark.ci]

DEVICE = {"t0": 0.02, "a": 0.0005, "b": 0.0002, "c": 0.01}
LOOK_S = 300
"""For so long the doctor is asked: a busy machine is slow to hang, and to look."""


@pytest.fixture
def server(tmp_path, moe_model):
    """Two ranks that compute nothing and end nothing, and clients for both."""
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        FILE: str(tmp_path / "hang"),
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "900",
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1",
    }
    options = (
        "-dp",
        "2",
        "--data-parallel-balance",
        "adaptive",
        "--async-scheduling",
        "--max-num-seqs",
        "8",
        "--max-model-len",
        "1024",
        "--scheduler-cls",
        "hanging_device.Hanging",
        "--additional-config",
        json.dumps({"emulated_device": DEVICE}),
    )
    server = Server(tmp_path, moe_model, *options, environment=environment)
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


def look(server, is_seen):
    """The doctor's lines by name, once they are as wanted, or when the time is over."""
    deadline = time.monotonic() + LOOK_S
    while True:
        lines = {line.what: line for line in report(server._process.pid)}
        if is_seen(lines) or time.monotonic() > deadline:
            print(*lines.values(), sep="\n")
            return lines


def is_well(lines):
    return {line.state for line in lines.values()} == {"ok"} and "rank 1" in lines


def test_each_rank_says_what_it_does(server):
    """A call of the model that does not end, and then a rank that was stopped."""
    lines = look(server, is_well)
    assert {"front-end", "coordinator", "rank 0", "rank 1", "ranks"} <= {*lines}
    assert lines["ranks"].found == "2 of 2 are on this host"
    (server.log.parent / "hang").touch()
    lines = look(server, lambda lines: lines["rank 1"].state == "warn")
    assert lines["rank 1"].state == "warn"
    assert "in the model for" in lines["rank 1"].found
    assert "at start_step(" in lines["rank 1"].found
    (server.log.parent / "hang").unlink()
    assert is_well(look(server, is_well))
    pid = int(lines["rank 1"].found.split()[1].rstrip(","))
    os.kill(pid, signal.SIGSTOP)
    lines = look(server, lambda lines: lines["rank 1"].state == "bad")
    assert lines["rank 1"].do == f"kill -CONT {pid}: the others wait for it"
    os.kill(pid, signal.SIGCONT)
    assert is_well(look(server, is_well))
