"""`vllm-balance policy` and a real server."""

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import APIRouter, HTTPException
from vllm.config import ParallelConfig
from vllm.v1.core.sched.balance.front import policy_route

from hostile_clients import rank_pids
from schedulers import engine_config
from test_greedy_equality import CAP, assert_equal
from vllm_server import REQUEST_S, Server, direct

KEY = "BALANCE_OPERATOR_KEY"
SECRET = {KEY: "only operators know"}
RANKS = 2
OPTIONS = ("-dp", f"{RANKS}", "--enable-expert-parallel", *CAP)
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
    # Not forked: whether there is a key is looked at on import.
    with Server(folder, moe_model, *OPTIONS, environment=SECRET) as found:
        yield found


def test_answers_are_equal_whatever_is_switched_meanwhile(server, moe_samples):
    """Each policy decides under its own label."""
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
    assert f"expected the operators' key, the server's {KEY}" in answer.text


def test_what_names_no_policy_is_refused(server):
    before = policy(server.url)
    for body in ("", "[]", "{}", '{"policy": "best"}', "{"):
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


CONNECTOR = {"kv_connector": "ExampleConnector", "kv_role": "kv_consumer"}


def test_without_a_key_there_is_no_route(monkeypatch):
    for key, routes in (("", 0), (SECRET[KEY], 1)):
        monkeypatch.setenv(KEY, key)
        policy_route.add_policy_route(router := APIRouter())
        assert len(router.routes) == routes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "this server was started with --data-parallel-balance off"),
        ({"data_parallel_balance": "cap", "kv_transfer_config": CONNECTOR}, "a decode"),
    ],
    ids=["off", "decodes"],
)
def test_where_nothing_can_be_switched_it_says_so(
    moe_model, monkeypatch, options, said
):
    monkeypatch.setenv(KEY, SECRET[KEY])
    config = engine_config(moe_model, data_parallel_size=2, **options)
    client = SimpleNamespace(vllm_config=config)
    app = SimpleNamespace(state=SimpleNamespace(engine_client=client))
    headers = {"Authorization": f"Bearer {SECRET[KEY]}"}
    request = SimpleNamespace(headers=headers, app=app)
    with pytest.raises(HTTPException, match=said) as error:
        asyncio.run(policy_route._policy(request))
    assert error.value.status_code == 409


def test_ranks_that_were_switched_off_are_watched_all_the_same(server):
    """A rank that dies while nothing is exchanged is named, and all end. The last."""
    server.complete([[5] * 40], 3)
    assert policy(server.url, "off")[0] == 0
    before = server.metric("vllm:generation_tokens_total")
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(server.ask, number % 2, prompt=[5] * 9, max_tokens=4000)
            for number in range(4)
        ]
        while server.metric("vllm:generation_tokens_total") == before:
            time.sleep(0.1)
        os.kill(rank_pids(server)[1], 9)
        assert all(each.result().status_code >= 500 for each in asked)
    assert server.wait(REQUEST_S) == 1
    log = server.log.read_text()
    assert "EngineCore_DP1 was the first process to end." in log
    # Rank 0 may have been told to stop before it noticed.
    stopped = "[shutdown] EngineCore: exiting busy loop" in log
    assert stopped or "no answer from rank 1 (process ended" in log
