# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Sends traces at their times, and sessions a think time after each answer."""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tqdm import tqdm

from ..requests.arrivals import ClientTraffic
from ..requests.request import SimRequest
from ..requests.workload import Workload
from .endpoint import Endpoint

WARM_UPS, WARM_UP_TOKENS = 8, 32


def send(
    endpoint: Endpoint,
    workload: Workload,
    traffic: ClientTraffic,
    seed: int,
    show_progress: bool,
) -> dict[str, Any]:
    """Sends the requests that the simulator would; returns what bench serve would save.

    Args:
        endpoint: the server.
        workload: of a trace.
        traffic: when its requests are sent.
        seed: of the tokens: equal hash ids of a seed are equal text.
        show_progress: on a terminal.
    """
    # It is there where a server is; the simulator does without.
    from vllm.tokenizers import get_tokenizer

    name, root = endpoint.model()
    tokenizer = get_tokenizer(root)
    special = set(tokenizer.all_special_ids)
    tokens = [i for i in range(len(tokenizer)) if i not in special]
    requests = workload.requests(random.Random(f"lengths {seed}"))
    prompts = Prompts(tokens, seed)
    return asyncio.run(_send(endpoint, name, requests, traffic, prompts, show_progress))


class Prompts:
    """The tokens of requests: those of a chunk are drawn by its hash id."""

    def __init__(self, tokens: Sequence[int], seed: int) -> None:
        self._drawn = lru_cache(1 << 16)(
            lambda name, count: random.Random(f"{seed} {name}").choices(tokens, k=count)
        )

    def of(self, request: SimRequest) -> list[int]:
        """Whole chunks, and then tokens of its own."""
        size, length = request.chunk_size, request.prompt_len
        ids = itertools.islice(request.hash_ids, -(-length // size))
        found = list(
            itertools.chain.from_iterable(self._drawn(each, size) for each in ids)
        )
        rest = max(0, length - len(found))
        return [*found[:length], *self._drawn(f"own {request.index}", rest)]


async def _send(
    endpoint: Endpoint,
    model: str,
    requests: Sequence[SimRequest],
    traffic: ClientTraffic,
    prompts: Prompts,
    show_progress: bool,
) -> dict[str, Any]:
    import aiohttp
    from vllm.benchmarks.lib.endpoint_request_func import (
        AIOHTTP_TIMEOUT,
        RequestFuncInput,
        async_request_openai_completions,
    )

    async def ask(prompt: list[int], output: int) -> Any:
        asked = RequestFuncInput(
            *(prompt, f"{endpoint.url}/v1/completions", len(prompt), output, model),
            extra_headers=endpoint.headers,
            ignore_eos=True,
        )
        return await async_request_openai_completions(asked, http)

    sessions = [
        list(each)
        for _, each in itertools.groupby(requests, key=lambda request: request.session)
    ]
    first = [session[0] for session in sessions]
    due = traffic.due_times(first, random.Random(0))
    room = asyncio.Semaphore(traffic.max_concurrency or len(sessions))
    answers: dict[int, Any] = {}

    async def client(session: Sequence[SimRequest], at: float) -> None:
        await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
        async with room:
            for request in session:
                if request.think is not None:
                    await asyncio.sleep(request.think / traffic.rate_multiplier)
                prompt = prompts.of(request)
                answers[request.index] = await ask(prompt, request.output_len)
                bar.update()

    # An idle connection may end just when the next request goes.
    connections = aiohttp.TCPConnector(limit=0, force_close=True, ssl=endpoint.verify)
    async with aiohttp.ClientSession(
        connector=connections, timeout=AIOHTTP_TIMEOUT, read_bufsize=2**18
    ) as http:
        lengths = WARM_UP_TOKENS, WARM_UP_TOKENS
        extra = [SimRequest(-1 - number, *lengths) for number in range(WARM_UPS)]
        await asyncio.gather(*(ask(prompts.of(r), r.output_len) for r in extra))
        hidden = None if show_progress else True  # None: unless on a terminal
        with tqdm(total=len(requests), unit="req", disable=hidden) as bar:
            begin = time.perf_counter()
            sent = asyncio.gather(*map(client, sessions, due))
            while not sent.done():
                endpoint.watch()
                await asyncio.wait([sent], timeout=1)
            await sent
    return _saved([answers[request.index] for request in requests])


def _saved(rows: Sequence[Any]) -> dict[str, Any]:
    """As `vllm bench serve --save-detailed` has it."""
    return {
        "completed": sum(row.success for row in rows),
        "failed": sum(not row.success for row in rows),
        "input_lens": [row.prompt_len for row in rows],
        "output_lens": [row.output_tokens for row in rows],
        "start_times": [row.start_time for row in rows],
        "ttfts": [row.ttft for row in rows],
        "itls": [row.itl for row in rows],
        "generated_texts": [row.generated_text for row in rows],
        "errors": [row.error for row in rows],
    }
