"""Servers on devices and with clients that are not kind: afterwards they are as new."""

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from hostile_clients import measure, rank_pids, stream
from hostile_scheduler import FOLDER
from vllm_server import Server

pytestmark = pytest.mark.slow

DEVICE = {"t0": 0.02, "a": 0.0005, "b": 0.0002, "c": 0.01}


def options(**device):
    """Two ranks that compute nothing and schedule asynchronously."""
    emulated = {"emulated_device": DEVICE | device}
    return (
        "-dp",
        "2",
        "--data-parallel-balance",
        "adaptive",
        "--async-scheduling",
        "--api-server-count",
        "2",
        "--max-num-seqs",
        "8",
        "--max-num-batched-tokens",
        "512",
        "--max-model-len",
        "1024",
        "--no-enable-prefix-caching",
        "--scheduler-cls",
        "hostile_scheduler.Recorded",
        "--additional-config",
        json.dumps(emulated),
    )


def serve(folder, model, *arguments):
    environment = {"PYTHONPATH": str(Path(__file__).parents[1]), FOLDER: str(folder)}
    return Server(folder, model, *arguments, environment=environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def server(folder, moe_model):
    with serve(folder, moe_model, *options()) as served:
        yield served


@pytest.fixture(scope="module")
def fresh(server):
    """What clients see while nobody has done any harm."""
    measure(server, 10)
    return measure(server)


def assert_as_fresh(server, fresh):
    """Requests are spread and served as before; a busy machine has many tries."""
    for _ in range(8):
        load = measure(server)
        print(f"fresh {fresh}, now {load}")
        even = min(load.by_rank) > 0.6 * max(load.by_rank)
        if is_as_fresh := even and load.ttft_s < 3 * fresh.ttft_s + 0.5:
            break
    assert is_as_fresh, (load, fresh)
    for name in ("running", "waiting"):
        assert set(server.metric(f"vllm:num_requests_{name}").values()) == {0}


def hang_up(server, rng):
    """A client that goes away while it is queued, held, computed or answered."""
    body = {
        "prompt": [5] * rng.choice((5, 100, 900)),
        "max_tokens": rng.choice((1, 2, 20, 100)),
    }
    with contextlib.suppress(requests.Timeout, requests.ConnectionError):
        stream(server, body, stop_after=rng.choice((0.01, 0.1, 0.5, 1, 2)))


def test_clients_that_hang_up_in_every_state(server, fresh):
    rngs = [random.Random(number) for number in range(200)]
    with ThreadPoolExecutor(50) as pool:
        for _gone in pool.map(hang_up, [server] * len(rngs), rngs):
            pass
    assert_as_fresh(server, fresh)


def test_metrics_are_what_happened(server, fresh, folder):
    """Every decision in all that this server went through, and where requests went."""
    before, load = recorded(server, folder), measure(server)
    records = recorded(server, folder)
    sent = [records[rank]["requests"] - before[rank]["requests"] for rank in (0, 1)]
    assert sent == load.by_rank
    held = server.metric("vllm:dp_balance_held_steps_total")
    for rank, record in enumerate(records):
        # Not held back are those that went away, or could not have been admitted.
        assert 0.9 * record["held steps"] < held[rank] <= record.pop("held steps")
    for kind in {*records[0], *records[1]} - {"requests"}:
        verb, reason = kind.split(" ", 1)
        counted = server.metric(
            "vllm:dp_balance_decisions_total", decision=verb, reason=reason
        )
        assert [counted.get(rank, 0) for rank in (0, 1)] == [
            each.get(kind, 0) for each in records
        ], kind
    decisions = server.metric("vllm:dp_balance_decisions_total")
    for rank, record in enumerate(records):
        assert decisions[rank] == sum(record.values()) - record["requests"]


def recorded(server, folder):
    """What each rank wrote down, once all have told the front-end."""
    server.settled_metrics("vllm:dp_balance_decisions_total")
    files = [folder / f"rank-{rank}.json" for rank in (0, 1)]
    return [Counter(json.loads(file.read_text())) for file in files]


def test_a_first_decode_that_is_stopped_and_slow(fresh, tmp_path, moe_model):
    """And a decode time that halves later."""
    scales = [[0, 3 / DEVICE["t0"]], [1, 1], [300, 0.5]]
    with serve(tmp_path, moe_model, *options(decode_scales=scales)) as slow:
        body = {"prompt": [5] * 20, "max_tokens": 20}
        pids = rank_pids(slow)
        stream(slow, body | {"max_tokens": 1}, {"X-data-parallel-rank": "1"})
        os.kill(pids[1], signal.SIGSTOP)
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(stream, slow, body)
            time.sleep(3)
            os.kill(pids[1], signal.SIGCONT)
            assert asked.result() is not None
        print(measure(slow))
        assert_as_fresh(slow, fresh)
        assert_as_fresh(slow, fresh)
