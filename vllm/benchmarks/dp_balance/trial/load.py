# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What is sent in a turn: by `vllm bench serve`, or sessions by us."""

import argparse
import asyncio
import contextlib
import copy
import itertools
import random
import sys
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

from ..arguments import MOST_REQUESTS, whole
from ..errors import UsageError
from ..requests.request import SimRequest
from ..requests.workload import Workload
from .endpoint import Endpoint

OURS = ("base_url", "save_result", "append_result", "result_filename")
"""Options of `vllm bench serve` that the trial sets."""
WARM_UPS = 8


class Load(Protocol):
    """The same in every turn of a round; rounds have other prompts or another order."""

    args: argparse.Namespace
    """Its options."""

    def send(self, endpoint: Endpoint, number: int) -> Awaitable[dict[str, Any]]:
        """Sends that of a round; what `vllm bench serve --save-detailed` saves."""


class Parser(argparse.ArgumentParser):
    """Its errors are ours."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message}.")


class BenchServe:
    """Whatever `vllm bench serve` can send."""

    def __init__(self, words: Sequence[str], log: Path, show_progress: bool) -> None:
        """Reads its options.

        Args:
            words: the options.
            log: gets what it prints.
            show_progress: on a terminal.

        Raises:
            UsageError: an option is wrong.
        """
        # Where a server is these are there; the simulator does without.
        from vllm.benchmarks.serve import add_cli_args
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = type("Parser", (Parser, FlexibleArgumentParser), {})(add_help=False)
        add_cli_args(parser)
        parser.set_defaults(num_warmups=WARM_UPS, save_detailed=True)
        self.args = parser.parse_args(list(words))
        for name in OURS:
            if getattr(self.args, name) != parser.get_default(name):
                option = name.replace("_", "-")
                raise UsageError(f"--{option}: the trial sets it; leave it out.")
        self.args.disable_tqdm |= not (show_progress and sys.stderr.isatty())
        self._log = log

    async def send(self, endpoint: Endpoint, number: int) -> dict[str, Any]:
        """Runs it in this process."""
        from vllm.benchmarks.serve import main_async

        args = copy.copy(self.args)
        args.base_url, args.seed = endpoint.url, args.seed + number
        if args.model is None:
            args.served_model_name, args.model = endpoint.model()
        try:
            with self._log.open("w") as log, contextlib.redirect_stdout(log):
                saved: dict[str, Any] = await main_async(args)
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"vllm bench serve: {error} Its log: {self._log}"
            ) from None
        return saved


class Sessions:
    """Sessions of agents: each request is sent a think time after the answer before."""

    def __init__(self, path: Path, words: Sequence[str]) -> None:
        """Reads them. Raises UsageError for another file or option."""
        parser = Parser(add_help=False)
        parser.add_argument("--header", nargs="*")
        parser.add_argument("--insecure", action="store_true")
        for option in ("--num-prompts", "--max-concurrency"):
            parser.add_argument(option, type=whole(1, MOST_REQUESTS))
        self.args = parser.parse_args(list(words))
        workload = Workload(self.args.num_prompts, trace=path)
        requests = workload.requests(random.Random(0))
        if all(request.think is None for request in requests):
            raise UsageError(
                f"--sessions {path}: nothing in it waits for an answer; send a trace "
                "by `--dataset-name timed_trace`."
            )
        by_session = itertools.groupby(requests, key=lambda request: request.session)
        self._sessions = [list(each) for _, each in by_session]

    async def send(self, endpoint: Endpoint, number: int) -> dict[str, Any]:
        """Sends them from so many clients; a chunk's text is drawn by its hash id."""
        import aiohttp
        from vllm.benchmarks.lib import endpoint_request_func as client
        from vllm.tokenizers import get_tokenizer

        name, root = endpoint.model()
        tokenizer = get_tokenizer(root)
        tokens = sorted({*range(len(tokenizer))} - {*tokenizer.all_special_ids})

        @lru_cache(1 << 16)
        def text_of(chunk: object, length: int) -> list[int]:
            return random.Random(f"{number} {chunk}").choices(tokens, k=length)

        async def converse(session: Sequence[SimRequest]) -> list[Any]:
            answers = []
            async with room:
                for request in session:
                    await asyncio.sleep(request.think or 0.0)
                    size, length = request.chunk_size, request.prompt_len
                    whole_ones = itertools.islice(request.hash_ids, length // size)
                    texts = [text_of(chunk, size) for chunk in whole_ones]
                    own = text_of(f"own {request.index}", length - size * len(texts))
                    asked = client.RequestFuncInput(
                        [*itertools.chain(*texts, own)],
                        f"{endpoint.url}/v1/completions",
                        *(length, request.output_len, name),
                        extra_headers=endpoint.headers,
                        ignore_eos=True,
                    )
                    ask = client.async_request_openai_completions
                    answers.append(await ask(asked, http))
            return answers

        room = asyncio.Semaphore(self.args.max_concurrency or len(self._sessions))
        # An idle connection may end just when the next request goes.
        ssl = endpoint.verify
        connections = aiohttp.TCPConnector(limit=0, force_close=True, ssl=ssl)
        how: dict[str, Any] = {"timeout": client.AIOHTTP_TIMEOUT, "trust_env": True}
        async with aiohttp.ClientSession(connector=connections, **how) as http:
            found = await asyncio.gather(*map(converse, self._sessions))
        return saved_as_by_bench([*itertools.chain(*found)])


def saved_as_by_bench(answers: Sequence[Any]) -> dict[str, Any]:
    """As `vllm bench serve --save-detailed` has them."""
    completed = sum(answer.success for answer in answers)
    return {
        "completed": completed,
        "failed": len(answers) - completed,
        "output_lens": [answer.output_tokens for answer in answers],
        "start_times": [answer.start_time for answer in answers],
        "ttfts": [answer.ttft for answer in answers],
        "itls": [answer.itl for answer in answers],
        "errors": [answer.error for answer in answers],
    }
