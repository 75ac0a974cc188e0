"""A server that stops, or loses a part: streams get an error, and nothing is left."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
import requests
from vllm.utils.network_utils import find_process_using_port

from vllm_server import Server, direct, is_alive

HANG_S = 60
"""What still runs after that hangs; an idle machine needs two or three seconds."""
MANY = 4000
"""Tokens of a stream that is still at the beginning when the server stops."""

CHOICES = [f"c{i:07d}" for i in range(20_000)]


class Stream(threading.Thread):
    """A client; `end` is "error" if it was told so, "abort" if that was the reason."""

    def __init__(self, server, prompt, **more):
        super().__init__(daemon=True)
        self.end, self.ended_at = "", 0.0
        self.began = threading.Event()
        body = {
            "model": str(server.model),
            "prompt": [prompt, 2, 3],
            "max_tokens": MANY,
            "ignore_eos": True,
            "stream": True,
            **more,
        }
        self._post = lambda: direct(
            "POST",
            f"{server.url}/v1/completions",
            json=body,
            stream=True,
            timeout=2 * HANG_S,
        )
        self.start()

    def run(self):
        self.end = "complete"
        try:
            with self._post() as answer:
                for line in answer.iter_lines():
                    self._read(line)
        except requests.RequestException:
            self.end = "error"
        self.ended_at = time.monotonic()
        self.began.set()

    def _read(self, line):
        if not line.startswith(b"data: {"):
            return
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            self.end = "error"
        elif event["choices"][0]["finish_reason"]:
            self.end = event["choices"][0]["finish_reason"]
        self.began.set()


def terminate(server):
    os.kill(front_end(server), signal.SIGTERM)


def terminate_all(server):
    """As systemd and a terminal do."""
    for process in server.processes():
        process.terminate()


def kill_front_end(server):
    os.kill(front_end(server), signal.SIGKILL)


def kill_coordinator(server):
    (pid,) = re.findall(
        r"DP Coordinator process \(PID: (\d+)\)", server.log.read_text()
    )
    os.kill(int(pid), signal.SIGKILL)


def front_end(server):
    assert server._process is not None
    return server._process.pid


SAID = {
    kill_front_end: "has ended without stopping it",
    kill_coordinator: "the coordinator (pid",
}
STATUS = {kill_front_end: -signal.SIGKILL, kill_coordinator: 1}
"""What the first process exits with, if not 0: nobody asked it to end."""
STOPS = (terminate, terminate_all, kill_front_end, kill_coordinator)
QUICK = (
    (terminate, "fork", 1, "off"),
    (kill_coordinator, "fork", 1, "adaptive"),
)
CI = pytest.param(
    *(kill_front_end, "fork", 1, "adaptive"), marks=[pytest.mark.slow, pytest.mark.ci]
)
SLOW = (
    *((stop, "spawn", 1, "adaptive") for stop in STOPS),
    *((stop, "fork", 1, "off") for stop in STOPS if stop is not terminate),
    (terminate, "fork", 1, "adaptive"),
    (terminate_all, "fork", 1, "adaptive"),
    *((stop, "spawn", 2, "adaptive") for stop in STOPS if stop is not terminate_all),
)


@pytest.mark.parametrize(
    ("stop", "method", "api_servers", "policy"),
    [*QUICK, CI, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_a_server_that_stops_leaves_nothing(
    moe_model, tmp_path, stop, method, api_servers, policy
):
    """The reference platform forks its processes, Ascend spawns them."""
    server = Server(
        tmp_path,
        moe_model,
        "-dp",
        "2",
        "--enable-expert-parallel",
        "--data-parallel-balance",
        policy,
        "--max-num-seqs",
        "4",
        "--api-server-count",
        str(api_servers),
        environment={"VLLM_WORKER_MULTIPROC_METHOD": method},
        forked=method == "fork",
    )
    server.__enter__()  # `stopped_in` sees to its end
    print(f"{stop.__name__}, {method}: {stopped_in(server, stop):.1f} s")


@pytest.mark.parametrize("of_this_server", [True, False])
def test_a_server_looks_for_strangers_on_its_port(of_this_server):
    """Not for its own ranks: it asked for the command of one that had just ended.

    A stranger may have been started by the same script, in the same process group.
    """
    command = ["sleep", str(HANG_S)]
    if not of_this_server:  # whose parent has ended
        command = ["sh", "-c", f"sleep {HANG_S} & echo $!"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        started = subprocess.Popen(
            command, pass_fds=[listener.fileno()], stdout=subprocess.PIPE
        )
    other = started.pid if of_this_server else int(started.stdout.readline())
    try:
        if not of_this_server:
            started.wait()
        found = find_process_using_port(port)
    finally:
        os.kill(other, signal.SIGKILL)
        started.wait()
    assert (found and found.pid) == (None if of_this_server else other)


def stopped_in(server, stop):
    """Seconds from the stop to the end of the last process and stream."""
    processes = server.processes()
    try:
        assert len(processes) >= 4, processes  # front-end, coordinator, two ranks
        streams = [Stream(server, prompt) for prompt in (1, 2)]
        slow = ask_half_a_question(server)
        assert all(stream.began.wait(HANG_S) for stream in streams)
        streams.append(Stream(server, 3, structured_outputs={"choice": CHOICES}))
        while not (trial := trials(server)):
            time.sleep(0.1)
        processes += trial
        assert all(stream.is_alive() for stream in streams)
        began = time.monotonic()
        stop(server)
        status = server.wait(HANG_S)
        ended = time.monotonic()
        assert not [each for each in processes if is_alive(each.pid)]
        for stream in streams:
            stream.join(max(0.0, began + HANG_S - time.monotonic()))
        assert not any(stream.is_alive() for stream in streams)
        assert {stream.end for stream in streams} <= {"error", "abort"}
        slow.close()
        assert status == STATUS.get(stop, 0)
        assert SAID.get(stop, "") in server.log.read_text()
        assert stop in SAID or "Ending the server" not in server.log.read_text()
        return max(ended, *(stream.ended_at for stream in streams)) - began
    except BaseException:
        server.print_log_tail()
        raise
    finally:
        server.kill()
        server.stop()


def trials(server):
    """Processes that check what is large, as long as they begin or are at work."""
    return [p for p in server.processes() if "vllm.fixes.trial" in str(p.cmdline())]


def ask_half_a_question(server):
    """A client whose request is never complete, so that its connection stays busy."""
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    )
    return client
