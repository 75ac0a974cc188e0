"""Measures how long polite clients wait beside one client at this server's limits.

::

    PYTHONPATH=tests/engine build/env/reference/bin/python bench/polite.py [--rounds N]

Each round serves `off`, then `adaptive`, on two emulated ranks, and polite clients ask
for answers of 4 and of 32 tokens, alone and beside one client of eight connections.
What that sends is nothing but large, and within the limits of docs/reference.md; with
`--hostile usual` it is as usual as the polite, which tells what part the machine has.
Three rounds take a quarter of an hour.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import aiohttp

from vllm_balance.reference import tiny_models
from vllm_server import Server

DEVICE = {"t0": 0.02, "a": 0.0005, "b": 0.0002, "c": 0.01}
EMULATED = json.dumps({"emulated_device": DEVICE}, separators=(",", ":"))
OPTIONS = f"""-dp 2 --async-scheduling --max-num-seqs 64 --max-num-batched-tokens 512
--max-model-len 1024 --no-enable-prefix-caching --additional-config {EMULATED}"""
POLITE_CLIENTS, CONNECTIONS, SECONDS = 20, 8, 25


def enum(size):
    """A schema of words, as long as that."""
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


async def phase(url, tokens, seconds, hostile):
    """What each polite request took, and what the others were answered."""
    took, statuses = [], Counter()
    polite = {"prompt": [5] * 20, "max_tokens": tokens, "ignore_eos": True}

    async def be_polite(rng):
        while True:
            await asyncio.sleep(rng.expovariate(2))
            start = time.monotonic()
            assert await ask(json.dumps(polite).encode()) == 200
            took.append(time.monotonic() - start)

    async def be_hostile(first):
        for body in itertools.islice(itertools.cycle(hostile), first, None):
            statuses[await ask(body)] += 1

    async def ask(body):
        async with session.post("/v1/completions", data=body) as answer:
            await answer.read()
            return answer.status

    kind, connector = (
        {"Content-Type": "application/json"},
        aiohttp.TCPConnector(limit=0),
    )
    async with aiohttp.ClientSession(url, headers=kind, connector=connector) as session:
        clients = [be_polite(random.Random(i)) for i in range(POLITE_CLIENTS)]
        clients += [be_hostile(i) for i in range(CONNECTIONS) if hostile]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*clients), seconds)
    return took, statuses


def main():
    """Prints the medians of rounds, and the ratio of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hostile", choices=HOSTILE, default="large")
    of = parser.parse_args()
    bodies = [
        json.dumps({"max_tokens": 4} | each).encode() for each in HOSTILE[of.hostile]
    ]
    rows, statuses = defaultdict(list), Counter()
    with tempfile.TemporaryDirectory() as name:
        model = tiny_models.make("moe", Path(name))
        for _, policy in itertools.product(range(of.rounds), ("off", "adaptive")):
            options = *OPTIONS.split(), "--data-parallel-balance", policy
            with Server(Path(name), model, *options) as server:
                asyncio.run(phase(server.url, 4, 5, bodies))  # what is made once
                for tokens in (4, 32):
                    alone, _ = asyncio.run(phase(server.url, tokens, SECONDS, ()))
                    both = phase(server.url, tokens, SECONDS, bodies)
                    beside, told = asyncio.run(both)
                    statuses += told
                    rows[policy, tokens].append((alone, beside))
    print(f"the one client was told {dict(statuses)}")
    for ((policy, tokens), pairs), at in itertools.product(rows.items(), (50, 95)):
        cuts = [
            [statistics.quantiles(x, n=100)[at - 1] for x in each] for each in pairs
        ]
        alone, beside = map(statistics.median, zip(*cuts, strict=True))
        ratios = " ".join(f"{b / a:.2f}x" for a, b in sorted(cuts))
        what = f"{alone:.3f} s alone, {beside:.3f} s beside: {ratios}"
        print(f"{policy}, {tokens} tokens, {at} % in: {what}")


if __name__ == "__main__":
    main()
