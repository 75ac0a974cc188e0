"""Sends agents' sessions to a real server: a request a think time after the answer.

Sessions are lines of bench/traces/agentx, made shorter so that an emulated device is
done with them in a minute or two.
"""

import asyncio
import itertools
import json
import operator
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from balance_tools.serving.server import Server

SHORTER = 16
"""What lengths are divided by: a block of 64 tokens then has 4."""
FASTER, LONGEST_THINK_S = 8, 5.0
"""What think times are divided by; none is longer."""
LONGEST_PROMPT = 10_000
"""Tokens, as sent: sessions with a longer one are left out."""
TURNS = 20
"""First requests of a session that are sent."""
TOKENS = range(3, 259)
"""Of the tiny models that are no special ones."""
KV_BLOCKS = 4096
"""Of 16 tokens, in a rank's KV cache: a sixteenth of 1,048,576 tokens."""
OPTIONS = (
    *("--enable-prefix-caching", "--max-model-len", str(LONGEST_PROMPT + 2_000)),
    *("--hf-overrides", json.dumps({"max_position_embeddings": 32_768})),
    *("--num-gpu-blocks-override", str(KV_BLOCKS), "--block-size", "16"),
)
"""Of the server."""

Session = Mapping[str, Any]


def shorter(folder: Path, count: int) -> list[Session]:
    """The first sessions of its files, in their format, as they are sent."""
    lines = "".join(path.read_text() for path in folder.glob("*.jsonl")).splitlines()
    found: list[Session] = []
    for session in sorted(map(json.loads, lines), key=operator.itemgetter("id")):
        block = session["block_size"] // SHORTER
        requests = []
        for _, prompt, output, spent, think, kept, runs in session["requests"][:TURNS]:
            wait = round(min(think / FASTER, LONGEST_THINK_S), 3)
            tokens = max(prompt // SHORTER, 1), max(output // SHORTER, 1)
            requests.append([0.0, *tokens, spent / FASTER, wait, kept, runs])
        if max(each[1] for each in requests) <= LONGEST_PROMPT:
            found.append({**session, "block_size": block, "requests": requests})
    return found[:count]


def prompts(session: Session) -> list[list[int]]:
    """The token ids of each request: those of a block are drawn by its number."""
    found, ids, size = [], [], session["block_size"]
    drawn: dict[int, list[int]] = {}
    for _, length, _, _, _, kept, runs in session["requests"]:
        new = itertools.chain(*(range(first, first + n) for first, n in runs))
        ids = [*ids[:kept], *new]
        for number in ids:
            if number not in drawn:
                rng = random.Random(f"{session['id']} {number}")
                drawn[number] = rng.choices(TOKENS, k=size)
        tokens = list(itertools.chain(*(drawn[number] for number in ids)))
        # What is less than a block has no number.
        tokens += random.Random(f"{session['id']} {len(found)}").choices(TOKENS, k=size)
        found.append(tokens[:length])
    return found


async def _ask(
    http: aiohttp.ClientSession,
    server: Server,
    prompt: list[int],
    output: int,
    pin: int,
) -> dict[str, Any]:
    """One request, as a row of what `vllm bench serve --save-detailed` writes."""
    body = {
        "model": str(server.model),
        "prompt": prompt,
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    headers = {} if pin < 0 else {"X-data-parallel-rank": str(pin)}
    start, times, tokens = time.perf_counter(), [], []
    url = f"{server.url}/v1/completions"
    async with http.post(url, json=body, headers=headers) as response:
        response.raise_for_status()
        async for line in response.content:
            text = line.decode().removeprefix("data:").strip()
            choices = json.loads(text)["choices"] if text.startswith("{") else ()
            if choices and choices[0].get("token_ids"):
                times.append(time.perf_counter())
                tokens += choices[0]["token_ids"]
    assert len(tokens) == output, f"expected {output} tokens, found {tokens}"
    return {
        "start_times": start,
        "input_lens": len(prompt),
        "output_lens": output,
        "ttfts": times[0] - start,
        "itls": [b - a for a, b in itertools.pairwise(times)],
        "e2els": times[-1] - start,
        "tokens": tokens,
    }


async def _replay(
    server: Server, sessions: Sequence[Session], ranks: int
) -> list[list[dict[str, Any]]]:
    async def client(number: int, session: Session) -> list[dict[str, Any]]:
        rows = []
        pin = number % ranks if ranks else -1
        for request, prompt in zip(session["requests"], texts[number], strict=True):
            if rows:
                await asyncio.sleep(request[4])
            rows.append(await _ask(http, server, prompt, request[2], pin))
        return rows

    texts = [prompts(session) for session in sessions]
    limits = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=limits[0], timeout=limits[1], read_bufsize=2**20
    ) as http:
        every = [client(i, session) for i, session in enumerate(sessions)]
        return await asyncio.gather(*every)


CACHE = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")


def replay(
    server: Server, path: Path, sessions: Sequence[Session], pinned_ranks: int
) -> None:
    """Sends the sessions, and writes the result as `vllm bench serve` would.

    With it go the answers, and `computed_share` of the prompt tokens, from /metrics.

    Args:
        server: gets the requests.
        path: the file.
        sessions: of `shorter`.
        pinned_ranks: each session names one of so many ranks in its requests; with 0,
            none does.
    """
    rows = asyncio.run(_replay(server, sessions, pinned_ranks))
    queries, hits = server.settled_metrics(*CACHE)
    flat = sorted(itertools.chain(*rows), key=lambda row: row["start_times"])
    columns: dict[str, Any] = {name: [row[name] for row in flat] for name in flat[0]}
    start = columns["start_times"][0]
    ends = [
        a + b for a, b in zip(columns["start_times"], columns["e2els"], strict=True)
    ]
    ttfts = sorted(columns["ttfts"])
    tpots = [statistics.fmean(row["itls"]) for row in flat if row["itls"]]
    document = {
        **columns,
        "output_throughput": sum(columns["output_lens"]) / (max(ends) - start),
        "mean_tpot_ms": 1e3 * statistics.fmean(tpots),
        "mean_ttft_ms": 1e3 * statistics.fmean(ttfts),
        "median_ttft_ms": 1e3 * statistics.median(ttfts),
        "p99_ttft_ms": 1e3 * ttfts[min(len(ttfts) - 1, round(0.99 * len(ttfts)))],
        "mean_e2el_ms": 1e3 * statistics.fmean(columns["e2els"]),
        "computed_share": 1 - sum(hits.values()) / sum(queries.values()),
        "answers": [[row["tokens"] for row in session] for session in rows],
    }
    path.write_text(json.dumps(document))
