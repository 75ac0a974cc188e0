"""Ranks with a port each, and a router outside that picks one: vLLM's own."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import requests

from hostile_clients import rank_pids
from test_greedy_equality import CAP, assert_equal
from vllm_server import Server, direct, free_port

RANKS = 2
START_S, END_S = 120, 120
PROGRAMS = Path(sys.executable).parent
TIMEOUT = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "20"}


@contextlib.contextmanager
def ranks(folder, model):
    """One server of two ranks, of which each has a port; the first owns it."""
    first = free_port()
    options = ["-dp", str(RANKS), "--data-parallel-size-local", str(RANKS)]
    options += ["--data-parallel-multi-port-external-lb"]
    options += ["--data-parallel-supervisor-port", str(free_port())]
    options += ["--data-parallel-rpc-port", str(free_port()), *CAP]
    with Server(folder, model, *options, port=first, environment=TIMEOUT) as server:
        others = [Server(folder, model, port=first + n) for n in range(1, RANKS)]
        for other in others:
            wait_for(other.url)
        yield [server, *others]


@contextlib.contextmanager
def router(folder, servers):
    """The router before these servers, as if it were one of them."""
    front = Server(folder, servers[0].model)
    command = [str(PROGRAMS / "vllm-router"), "--port", str(front.port)]
    command += ["--policy", "round_robin", "--prometheus-port", str(free_port())]
    command += ["--worker-urls", *(server.url for server in servers)]
    with (folder / "router.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(front.url)
        yield front
    finally:
        process.terminate()
        process.wait(END_S)


def wait_for(url):
    for _ in range(10 * START_S):
        with contextlib.suppress(requests.ConnectionError):
            if direct("GET", f"{url}/health", timeout=5).ok:
                return
        time.sleep(0.1)
    raise AssertionError(f"{url} does not answer")


def doctor(pid):
    command = [PROGRAMS / "vllm-balance", "doctor", "--json", "--pid", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True)
    return {line["what"]: line for line in json.loads(done.stdout)["lines"]}


@pytest.mark.slow
@pytest.mark.ci
def test_each_port_is_a_rank_and_they_are_balanced(moe_model, moe_samples, tmp_path):
    """Served, measured and looked at; then a rank is killed, and nothing is left."""
    with ranks(tmp_path, moe_model) as servers, router(tmp_path, servers) as front:
        assert_equal(front, moe_samples, concurrency=16)
        for rank, server in enumerate(servers):
            decisions, held, served = server.settled_metrics(
                "vllm:dp_balance_decisions_total",
                "vllm:dp_balance_held_steps_total",
                "vllm:request_success_total",
            )
            assert list(decisions) == list(served) == [rank]
            assert decisions[rank] > 0
            assert served[rank] > 0
            assert held[rank] > 0
        assert_loads_are_told(servers)
        # There is nothing to choose behind such a port: the header is not read.
        named = direct(
            "POST",
            f"{servers[1].url}/v1/completions",
            json={"model": str(moe_model), "prompt": [5], "max_tokens": 1},
            headers={"X-data-parallel-rank": "0"},
            timeout=60,
        )
        assert named.status_code == 200
        assert servers[1].metric("vllm:request_success_total")[1] > served[1]
        process = servers[0]._process
        assert process is not None
        found = doctor(process.pid)
        assert [found[f"rank {rank}"]["state"] for rank in range(RANKS)] == ["ok"] * 2
        second = psutil.Process(rank_pids(servers[0])[1])
        second.suspend()
        eventually(lambda: doctor(process.pid)["rank 1"]["state"] == "bad")
        line = doctor(process.pid)["rank 1"]
        assert line["do"] == f"kill -CONT {second.pid}: the others wait for it"
        second.kill()
        servers[0].wait(END_S)


def assert_loads_are_told(servers):
    """The first rank is full: what comes to it waits, and to the other is held."""
    names = ("unprefilled_tokens", "held_requests", "context_tokens")

    def told(rank):
        found = servers[rank].metrics(*(f"vllm:dp_balance_{name}" for name in names))
        return [values[rank] for values in found]

    with contextlib.ExitStack() as clients:

        def send(rank, prompt, answer):
            body = {"model": str(servers[rank].model), "prompt": [5] * prompt}
            body |= {"max_tokens": answer, "ignore_eos": True, "stream": True}
            url = f"{servers[rank].url}/v1/completions"
            clients.enter_context(
                direct("POST", url, json=body, stream=True, timeout=60)
            )

        for _ in range(2):
            send(0, prompt=20, answer=4000)  # until all has been looked at
        eventually(lambda: told(0)[2] > 40)
        send(0, prompt=30, answer=1)
        send(1, prompt=50, answer=1)
        eventually(lambda: told(0)[:2] == [30, 0] and told(0)[2] > 70)
        eventually(lambda: told(1) == [50, 1, 50])
    eventually(lambda: told(0) == told(1) == [0, 0, 0])


def eventually(holds):
    for _ in range(10 * START_S):
        if holds():
            return
        time.sleep(0.1)
    assert holds()
