"""Measures how long polite clients wait beside one client at this server's limits.

::

    build/env/reference/bin/python bench/polite.py [--rounds N]

Each round serves `off`, then `adaptive`, on two emulated ranks, and polite clients ask
for answers of 4 and of 32 tokens, alone and beside one client of eight connections. Its
requests are large, but within the limits of docs/reference.md; `--hostile usual` sends
usual ones instead, which shows how much of the wait is the machine's. Answers of one
token come first, as a warm-up. Three rounds take 20 min.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import aiohttp

from ports import free_port
from vllm_balance.reference import tiny_models
from vllm_balance.server_api import Endpoint
from vllm_balance.trial.server import Server

DEVICE = {"t0": 0.02, "a": 0.0005, "b": 0.0002, "c": 0.01}
EMULATED = json.dumps({"emulated_device": DEVICE}, separators=(",", ":"))
OPTIONS = f"""-dp 2 --async-scheduling --max-num-seqs 64 --max-num-batched-tokens 512
--max-model-len 1024 --no-enable-prefix-caching --additional-config {EMULATED}"""
POLITE_CLIENTS, CONNECTIONS, SECONDS = 20, 8, 25
POLICIES = ("off", "adaptive")
READY_S = 600.0


def enum(size):
    """A schema of words, of `size` bytes."""
    words = [f"word{i:07d}" for i in range(size // 15)]
    return {"prompt": "a", "structured_outputs": {"json": {"enum": words}}}


HOSTILE = {
    "usual": [{"prompt": [5] * 100, "max_tokens": 16}],
    "large": [
        {"prompt": "a", "user": "u" * (31 << 20)},
        *map(enum, (1_900_000, 200_000, 4_000)),
        {"prompt": ["a"] * 1_000, "max_tokens": 1},
        {"prompt": "a", "cache_salt": "s" * 1_000},
        {"prompt": [5] * 1_000, "max_tokens": 1},
    ],
}


@contextlib.contextmanager
def serving(model, policy):
    """The address of a server with that policy."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    vllm = str(Path(sys.executable).with_name("vllm"))
    command = f"serve {model} --port {port} {OPTIONS} --data-parallel-balance {policy}"
    with Server([vllm, *command.split()], model.parent / "log", os.environ) as server:
        server.start()
        server.wait_until_ready(Endpoint(url), READY_S)
        yield url


async def phase(url, tokens, hostile):
    """Seconds of each polite request, and the others' answers by status."""
    seconds, statuses = [], Counter()
    polite = {"prompt": [5] * 20, "max_tokens": tokens, "ignore_eos": True}

    async def be_polite(rng):
        while True:
            await asyncio.sleep(rng.expovariate(2))
            start = time.monotonic()
            assert await ask(json.dumps(polite).encode()) == 200
            seconds.append(time.monotonic() - start)

    async def be_hostile(first):
        for body in itertools.islice(itertools.cycle(hostile), first, None):
            try:
                statuses[await ask(body)] += 1
            except aiohttp.ClientError as error:
                statuses[type(error).__name__] += 1

    async def ask(body):
        async with session.post("/v1/completions", data=body) as answer:
            await answer.read()
            return answer.status

    options = {"headers": {"Content-Type": "application/json"}}
    async with aiohttp.ClientSession(url, **options) as session:
        clients = [be_polite(random.Random(i)) for i in range(POLITE_CLIENTS)]
        clients += [be_hostile(i) for i in range(CONNECTIONS) if hostile]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*clients), SECONDS)
    return seconds, statuses


def main():
    """Prints the medians of the rounds, and each round's ratio."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hostile", choices=HOSTILE, default="large")
    options = parser.parse_args()
    bodies = [
        json.dumps({"max_tokens": 4} | b).encode() for b in HOSTILE[options.hostile]
    ]
    rows, statuses = defaultdict(list), Counter()
    with tempfile.TemporaryDirectory() as name:
        model = tiny_models.make("moe", Path(name))
        for _, policy in itertools.product(range(options.rounds), POLICIES):
            with serving(model, policy) as url:
                for hostile, tokens in itertools.product(((), bodies), (1, 4, 32)):
                    seconds, counts = asyncio.run(phase(url, tokens, hostile))
                    statuses += counts
                    rows[policy, tokens, bool(hostile)].append(seconds)
    print(f"the one client was told {dict(statuses)}")
    for policy, tokens, rank in itertools.product(POLICIES, (4, 32), (50, 95)):
        alone, beside = (
            [
                statistics.quantiles(seconds, n=100)[rank - 1]
                for seconds in rows[policy, tokens, is_beside]
            ]
            for is_beside in (False, True)
        )
        ratios = " ".join(f"{b / a:.2f}x" for a, b in zip(alone, beside, strict=True))
        medians = "{:.3f} s alone, {:.3f} s beside".format(
            *map(statistics.median, (alone, beside))
        )
        print(
            f"{policy}, {tokens} tokens, {rank} % within {medians}, by rounds {ratios}"
        )


if __name__ == "__main__":
    main()
