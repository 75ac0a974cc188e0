"""`vllm-balance policy` and a real server with two API servers."""

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from vllm.config import ParallelConfig
from vllm.v1.core.sched.balance.front import policy_route

from hostile_clients import rank_pids
from test_greedy_equality import CAP, assert_equal
from test_prefill_decode import instance
from vllm_server import REQUEST_S, Server, direct

KEY = "BALANCE_OPERATOR_KEY"
SECRET = {KEY: "only operators know"}
RANKS = 2
OPTIONS = ("-dp", f"{RANKS}", "--api-server-count", "2", *CAP)
ROUND = ("off", "align", "adaptive", "cap")
SWITCHED = r"balance: policy \w+ instead of \w+, from step \d+ of wave \d+ on"
"""What each rank says of it once, with the same step."""


def policy(url, *name, key=SECRET[KEY]):
    """The command; what it prints, with its exit status."""
    command = [Path(sys.executable).parent / "vllm-balance", "policy", url, *name]
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", KEY: key}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=REQUEST_S
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def decided(server, name):
    """Whether all ranks have, by a policy."""
    decisions = server.metric("vllm:dp_balance_decisions_total", policy=name)
    return sorted(decisions) == [*range(RANKS)]


@pytest.fixture(scope="module")
def server(moe_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("switched")
    with Server(folder, moe_model, *OPTIONS, environment=SECRET) as found:
        yield found


def test_answers_are_equal_whatever_is_switched_meanwhile(server, moe_samples):
    """Whichever API server is asked; each policy decides under its own label."""
    assert policy(server.url) == (0, "cap")
    ended, said = threading.Event(), []

    def switch():
        while not ended.is_set():
            said.extend(policy(server.url, name) for name in ROUND)

    with ThreadPoolExecutor(1) as pool:
        switching = pool.submit(switch)
        try:
            for _ in range(30):
                assert_equal(server, moe_samples, concurrency=4 * RANKS)
                assert server.post("/reset_prefix_cache").status_code == 200
                if all(decided(server, name) for name in ROUND):
                    break
        finally:
            ended.set()
        switching.result()
    assert {status for status, _ in said} == {0}
    # Not by their prefixes: where Python does not buffer, two processes that write at
    # once can come between a prefix and its line.
    lines = Counter(re.findall(SWITCHED, server.log.read_text()))
    assert lines
    assert {*lines.values()} == {RANKS}, lines
    assert all(decided(server, name) for name in ROUND)


def test_idle_ranks_take_it_with_the_next_request(server, moe_samples):
    assert_equal(server, moe_samples[:4], concurrency=4)
    policy(server.url, "off")
    assert_equal(server, moe_samples[:4], concurrency=4)
    server.settled_metrics("vllm:dp_balance_decisions_total")
    status, said = policy(server.url, "align")
    assert (status, said.partition(" (")[0]) == (
        0,
        "off; align comes with the first step of the next request",
    )
    assert_equal(server, moe_samples[:4], concurrency=4)
    assert policy(server.url) == (0, "align")


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("said", [None, "", "Bearer", f"Bearer {SECRET[KEY]}x", "é"])
def test_clients_cannot_tell_or_change_it(server, method, said):
    headers = {} if said is None else {"Authorization": said.encode()}
    answer = direct(
        method, f"{server.url}/balance_policy", headers=headers, json={"policy": "off"}
    )
    assert answer.status_code == 401
    status, refusal = policy(server.url, key="wrong")
    assert status == 2
    assert f"expected the operators' key, the server's {KEY}\"; set {KEY} to" in refusal


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"policy": "best"}', "{"])
def test_what_names_no_policy_is_refused(server, body):
    before = policy(server.url)
    answer = direct(
        "POST",
        f"{server.url}/balance_policy",
        headers={"Authorization": f"Bearer {SECRET[KEY]}"},
        data=body,
    )
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message == 'expected {"policy": NAME}, one of off, cap, align, adaptive'
    assert policy(server.url) == before


def test_a_key_is_read_without_its_newline_or_refused_before_a_model_is_loaded(
    monkeypatch,
):
    """With which files and Secrets end; a server with such a key refused everybody."""
    monkeypatch.setenv(KEY, f"{SECRET[KEY]}\n")
    policy_route._check_key(f"Bearer {SECRET[KEY]}")
    for bad in ("hunter\n2", "hünter", "鍵"):
        monkeypatch.setenv(KEY, bad)
        with pytest.raises(ValueError, match=f"{KEY}: expected one line") as error:
            ParallelConfig()
        assert bad not in str(error.value)


DEVICE = {"t0": 0.005, "a": 0.0, "b": 0.00002, "c": 0.001}
QUICK = ("--additional-config", json.dumps({"emulated_device": DEVICE}))


def test_a_server_without_gate_or_key_says_so(moe_model, tmp_path):
    off = ("-dp", "2", "--data-parallel-balance", "off", *QUICK)
    with Server(tmp_path, moe_model, *off, environment=SECRET) as server:
        status, said = policy(server.url, "adaptive")
        assert status == 2
        assert "status 409 (Conflict), 'this server was started with --data-" in said
    with Server(tmp_path, moe_model, "-dp", "2", *CAP, *QUICK) as server:
        status, said = policy(server.url, "off")
        assert (status, server.post("/balance_policy").status_code) == (2, 404)
        assert f"start the server, of this wheel, with {KEY} in its environ" in said


def test_a_decode_instance_exchanges_next_to_nothing(moe_model, tmp_path, monkeypatch):
    """Nor has it anything to switch."""
    monkeypatch.setenv(KEY, SECRET[KEY])
    with instance(tmp_path, moe_model, "kv_consumer", "-dp", "2") as server:
        server.complete([[5] * 40] * 2, 320, concurrency=2)
        (exchanges,) = server.settled_metrics("vllm:dp_balance_exchange_seconds_count")
        status, said = policy(server.url, "align")
    assert max(exchanges.values()) <= 320 / 32 + 3
    assert min(exchanges.values()) > 0
    assert (status, "409 (Conflict), 'a decode instance" in said) == (2, True)


def test_ranks_that_were_switched_off_are_watched_all_the_same(moe_model, tmp_path):
    """A rank that dies while nothing is exchanged is named, and all end."""
    options = ("-dp", "2", "--enable-expert-parallel", *CAP)
    with Server(tmp_path, moe_model, *options, environment=SECRET) as server:
        server.complete([[5] * 40], 3)
        assert policy(server.url, "off")[0] == 0
        with ThreadPoolExecutor(4) as pool:
            asked = [
                pool.submit(server.ask, number % 2, prompt=[5] * 9, max_tokens=4000)
                for number in range(4)
            ]
            while not sum(server.metric("vllm:generation_tokens_total").values()):
                pass
            os.kill(rank_pids(server)[1], 9)
            assert all(each.result().status_code >= 500 for each in asked)
        assert server.wait(REQUEST_S) == 1
        assert "no answer from rank 1 (process ended" in server.log.read_text()
