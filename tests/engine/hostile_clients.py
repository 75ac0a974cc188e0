"""Clients that ask a real server at random times and measure what they get."""

import random
import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import requests

from vllm_server import direct

ANSWER_S = 120


@dataclass(frozen=True)
class Load:
    """What a number of equal clients saw."""

    ttft_s: float
    """Median time to first token."""
    by_rank: list[int]
    """Requests that each rank has answered."""


def stream(server, body, headers=None, stop_after=1e9):
    """Seconds to the first token, None without one; hangs up after `stop_after` s."""
    start, first = time.monotonic(), None
    with direct(
        "POST",
        f"{server.url}/v1/completions",
        json={"model": str(server.model), "ignore_eos": True, "stream": True} | body,
        headers=headers,
        stream=True,
        timeout=(ANSWER_S, min(ANSWER_S, max(stop_after, 0.01))),
    ) as answer:
        assert answer.status_code == 200, answer.text
        for line in answer.iter_lines():
            if first is None and line.startswith(b"data: {"):
                first = time.monotonic() - start
            if time.monotonic() - start > stop_after:
                break
    return first


def measure(server, count=60):
    """The same requests at the same times in every call, 12 a second."""
    rng = random.Random(0)
    before = server.metric("vllm:request_success_total")
    bodies, times, at = [], [], 0.0
    for _ in range(count):
        at += rng.expovariate(12)
        times.append(at)
        length = round(rng.lognormvariate(4.6, 0.8))
        bodies.append(
            {
                "prompt": [rng.randrange(3, 90) for _ in range(min(length, 800))],
                "max_tokens": rng.randrange(10, 50),
            }
        )
    start = time.monotonic()

    def client(number):
        time.sleep(max(0.0, start + times[number] - time.monotonic()))
        first = stream(server, bodies[number])
        assert first is not None
        return first

    with ThreadPoolExecutor(count) as threads:
        found = list(threads.map(client, range(count)))
    (after,) = server.settled_metrics("vllm:request_success_total")
    return Load(
        statistics.median(found),
        [round(after.get(rank, 0) - before.get(rank, 0)) for rank in (0, 1)],
    )


def rank_pids(server):
    named = re.findall(r"EngineCore_DP(\d) pid=(\d+)", server.log.read_text())
    return {int(rank): int(pid) for rank, pid in named}


def statuses_after(server, act, clients=8, tokens=400):
    """What waiting clients are told: 0 is nothing, 503 also a server that has gone.

    They ask for that many tokens each; none may have them all before `act`.
    """

    def ask(_):
        try:
            answer = server.ask(prompt=[1, 2, 3], max_tokens=tokens)
        except requests.ConnectionError:
            return 503
        except requests.Timeout:
            return 0
        return int(answer.status_code)

    with ThreadPoolExecutor(clients) as pool:
        answers = pool.map(ask, range(clients))
        while sum(server.metric("vllm:generation_tokens_total").values()) < 20:
            time.sleep(0.1)
        act()
        return list(answers)
