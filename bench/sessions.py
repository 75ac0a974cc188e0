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
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
from vllm.benchmarks.dp_balance.requests.sessions import session_turns
from vllm.benchmarks.lib.endpoint_request_func import (
    AIOHTTP_TIMEOUT,
    RequestFuncInput,
    RequestFuncOutput,
    async_request_openai_completions,
)

from balance_tools.serving.server import Server

SHORTER = 16
"""What lengths are divided by: a block of 64 tokens then has 4."""
FASTER, LONGEST_THINK_S = 8, 5.0
"""What think times are divided by; none is longer."""
LONGEST_PROMPT = 10_000
"""Tokens, as sent: sessions with a longer one are left out."""
TURNS = 20
"""First requests of a session that are sent."""
TOKENS = range(3, 97)
"""Those of the tiny models that are printable characters."""
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


def asked(session: Session) -> list[tuple[list[int], int, float | None]]:
    """Of each request the token ids, the tokens to answer, and the think time before.

    The tokens of a block are drawn by its number.
    """

    @cache
    def drawn(number: int) -> list[int]:
        return random.Random(f"{session['id']} {number}").choices(TOKENS, k=size)

    size, turns = session_turns(session["id"], session)
    found = []
    for length, output, think, ids in turns:
        tokens = list(itertools.chain.from_iterable(map(drawn, ids)))
        # What is less than a block has no number.
        tokens += drawn(len(found))
        found.append((tokens[:length], output, think))
    return found


async def _replay(
    server: Server, sessions: Sequence[Session], ranks: int
) -> list[list[RequestFuncOutput]]:
    url, model = f"{server.url}/v1/completions", str(server.model)

    async def client(number: int) -> list[RequestFuncOutput]:
        pin = {"X-data-parallel-rank": str(number % ranks)} if ranks else None
        answers: list[RequestFuncOutput] = []
        for prompt, output, think in requests[number]:
            await asyncio.sleep(think or 0.0)
            request = RequestFuncInput(
                *(prompt, url, len(prompt), output, model),
                extra_headers=pin,
                ignore_eos=True,
            )
            answers.append(await async_request_openai_completions(request, http))
        return answers

    requests = [asked(session) for session in sessions]
    # An idle connection may end just when the next request goes.
    connections = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(
        connector=connections, timeout=AIOHTTP_TIMEOUT, read_bufsize=2**18
    ) as http:
        return await asyncio.gather(*map(client, range(len(sessions))))


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
    answers = asyncio.run(_replay(server, sessions, pinned_ranks))
    queries, hits = server.settled_metrics(*CACHE)
    rows = sorted(itertools.chain(*answers), key=lambda row: row.start_time)
    if errors := [row.error for row in rows if not row.success]:
        sys.exit(f"error: {server.log}: {len(errors)} requests failed: {errors[0]}")
    ttfts = [1e3 * row.ttft for row in rows]
    last = max(row.start_time + row.latency for row in rows)
    tokens = sum(row.output_tokens for row in rows)
    document = {
        "start_times": [row.start_time for row in rows],
        "ttfts": [row.ttft for row in rows],
        "itls": [row.itl for row in rows],
        "output_throughput": tokens / (last - rows[0].start_time),
        "mean_tpot_ms": 1e3
        * statistics.fmean(statistics.fmean(r.itl) for r in rows if r.itl),
        "mean_ttft_ms": statistics.fmean(ttfts),
        "median_ttft_ms": statistics.median(ttfts),
        "p99_ttft_ms": statistics.quantiles(ttfts, n=100)[-1],
        "mean_e2el_ms": 1e3 * statistics.fmean(row.latency for row in rows),
        "computed_share": 1 - sum(hits.values()) / sum(queries.values()),
        "answers": [[row.generated_text for row in each] for each in answers],
    }
    path.write_text(json.dumps(document))
