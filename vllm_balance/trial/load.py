# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What is sent: a load of `vllm bench serve`, again and again until it is stopped."""

import argparse
import asyncio
import contextlib
import copy
import hashlib
import itertools
import logging
import math
import os
import random
import secrets
import time
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Sequence,
)
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..errors import UsageError
from ..server_api import Endpoint
from .figures import TICK, Answer, Limits

NOT_OURS = (
    *("base_url", "save_result", "save_detailed", "append_result", "result_filename"),
    *("percentile_metrics", "metric_percentiles", "plot_timeline", "profile"),
    *("plot_dataset_stats", "ramp_up_strategy", "num_warmups", "probe_request_rate"),
)
"""Options of `vllm bench serve` that mean nothing here."""


class Parser(argparse.ArgumentParser):
    """Its errors are ours."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message}.")


class Sending(NamedTuple):
    """A load that is ready to be sent to a server."""

    requests: Sequence[Any]
    send: Callable[[Any, str], Awaitable[Any]]
    """Sends one of them with a salt, and returns what `vllm bench serve` measures."""
    clients: int | None
    """That send one request after the other, of a closed loop; else None."""
    rate: float = math.inf
    """Requests that come per second; infinite if each has its `timestamp`."""
    burstiness: float = 1.0
    most: int | None = None
    """Requests that may be under way at a time, of those that come at their times."""
    limits: Limits = Limits()

    def dues(self, first: int, seed: int) -> Iterator[float]:
        """Seconds after which the requests come, from one of them on, without end."""
        drawn = random.Random(seed)
        number, at = len(self.requests), 0.0
        for place in itertools.count(first):
            if self.rate < math.inf:
                scale = 1 / (self.rate * self.burstiness)
                at += drawn.gammavariate(self.burstiness, scale)
            elif place > first:
                times = [
                    self.requests[x % number].timestamp for x in (place - 1, place)
                ]
                # The last one waits for the first as long as requests do on average.
                usual = self.requests[-1].timestamp / number
                at += times[1] - times[0] if place % number else usual
            yield at


class Load:
    """Whatever `vllm bench serve` can send."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        """Reads its options.

        Args:
            words: the options.
            log: gets what it prints.

        Raises:
            UsageError: an option is wrong.
        """
        # Where a server is these are there; the simulator does without.
        from vllm.benchmarks.serve import add_cli_args
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        if "VLLM_LOGGING_LEVEL" not in os.environ:  # else it says what it runs on
            logging.getLogger("vllm").setLevel(logging.WARNING)

        parser = type("Parser", (Parser, FlexibleArgumentParser), {})(add_help=False)
        add_cli_args(parser)
        self.args = parser.parse_args(list(words))
        for name in NOT_OURS:
            if getattr(self.args, name, None) != parser.get_default(name):
                option = name.replace("_", "-")
                raise UsageError(f"--{option}: means nothing to a trial; leave it out.")
        if (path := Path(self.args.dataset_path or "")).exists() and not (
            path.is_file() or path.is_dir()
        ):
            raise UsageError(
                f"--dataset-path {path}: is no regular file; write to one what comes "
                "out of it."
            )
        is_timed = self.args.dataset_name == "timed_trace" and (
            self.args.self_timed is not False
        )
        if (
            self.args.request_rate == float("inf")
            and not self.args.max_concurrency
            and not is_timed
        ):
            raise UsageError(
                "--request-rate, --max-concurrency: give one of them; without, all "
                "requests come at once, and such a load cannot go on."
            )
        self.args.disable_tqdm = True
        self._log = log

    def find_tokenizer(self, endpoint: Endpoint) -> None:
        """Looks for a deployment's tokenizer, as `vllm bench serve` will.

        Raises:
            UsageError: it is not; the server may name a folder of its own machine.
        """
        from vllm.benchmarks.serve import get_tokenizer

        args = self.args
        if args.skip_tokenizer_init:
            return
        name = args.tokenizer or args.model or endpoint.model()[1]
        try:
            get_tokenizer(
                name,
                tokenizer_mode=args.tokenizer_mode,
                trust_remote_code=args.trust_remote_code,
            )
        except Exception as error:  # of any library, and of the hub
            said = "is no folder here" if name.startswith("/") else str(error)
            raise UsageError(
                f"--tokenizer: none of {name}, the model of {endpoint.url}, is found "
                f"({said.strip().splitlines()[0]:.200}); give a folder that has it, or "
                "its name on the hub."
            ) from None

    @contextlib.asynccontextmanager
    async def sending(self, endpoint: Endpoint) -> AsyncIterator[Sending]:
        """Makes the requests, and a session of HTTP in which they are sent.

        Raises:
            UsageError: the requests cannot be made.
        """
        import aiohttp
        from vllm.benchmarks import serve

        given = await self._prepared(endpoint)
        send = serve.ASYNC_REQUEST_FUNCS[given["endpoint_type"]]
        closed = given["request_rate"] == float("inf") and not given["self_timed"]
        most, ssl = given["max_concurrency"], given["ssl_context"]
        goodput = given["goodput_config_dict"] or {}
        limits = Limits()
        if goodput:
            ttft, tpot = (goodput.get(x, float("inf")) / 1e3 for x in ("ttft", "tpot"))
            limits = Limits(ttft, tpot)
        connector = aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=60,
            ssl=ssl if ssl is not None else endpoint.url.startswith("https"),
        )
        async with aiohttp.ClientSession(
            connector=connector,
            trust_env=True,
            timeout=aiohttp.ClientTimeout(total=6 * 60 * 60),
        ) as session:

            async def one(request: Any, salt: str) -> Any:
                body = {**(given["extra_body"] or {}), "cache_salt": salt}
                sent = serve.RequestFuncInput(
                    model=given["model_id"],
                    model_name=given["model_name"],
                    prompt=request.prompt,
                    api_url=given["api_url"],
                    prompt_len=request.prompt_len,
                    output_len=request.expected_output_len,
                    logprobs=given["logprobs"],
                    multi_modal_content=request.multi_modal_data,
                    ignore_eos=given["ignore_eos"],
                    extra_headers=given["extra_headers"],
                    extra_body=body,
                )
                return await send(sent, session=session)

            yield Sending(
                given["input_requests"],
                one,
                most if closed else None,
                given["request_rate"],
                given["burstiness"],
                None if closed else most,
                limits,
            )

    async def _prepared(self, endpoint: Endpoint) -> dict[str, Any]:
        """What `vllm bench serve` would send, and how: its `benchmark` is not run."""
        from vllm.benchmarks import serve

        args = copy.copy(self.args)
        args.base_url = endpoint.url
        if args.model is None:
            args.served_model_name, args.model = endpoint.model()

        class Prepared(Exception):  # noqa: N818
            pass

        async def keep(**given: Any) -> None:
            raise Prepared(given)

        module: Any = serve  # the arguments of its function differ by release
        run, module.benchmark = module.benchmark, keep
        try:
            with self._log.open("w") as log, contextlib.redirect_stdout(log):
                await serve.main_async(args)
        except Prepared as prepared:
            found: dict[str, Any] = prepared.args[0]
            return found
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"vllm bench serve: {error} Its log: {self._log}"
            ) from None
        finally:
            module.benchmark = run
        raise AssertionError("`vllm bench serve` sends by its function `benchmark`")


class Traffic:
    """A load on its way, as an asynchronous context manager; all of it is answered.

    In a closed loop the requests come again when all were sent, with another salt: what
    a prefix cache has of them is not found. What comes at its own times comes alike in
    all stretches of a block, each with its salt, so that chance meets all policies
    alike.
    """

    def __init__(self, sending: Sending) -> None:
        self.answers: list[Answer] = []
        self.ticks: dict[int, float] = defaultdict(float)
        self.under_way: dict[int, float] = {}
        """When those were due that have no answer, by their number."""
        self.failure = ""
        self._sending = sending
        self._is_over = False
        self._sent = 0
        self._salt = ""
        self._block, self._first, self._next = -1, 0, 0
        self._tasks: set[asyncio.Future[None]] = set()
        self._source: asyncio.Future[None] | None = None
        limit = asyncio.Semaphore(sending.most) if sending.most else None
        self._slot = limit or contextlib.nullcontext()

    async def __aenter__(self) -> "Traffic":
        clients = self._sending.clients or 0
        self._begin(*(self._client() for _ in range(clients)))
        return self

    def begin(self, block: int) -> None:
        """A stretch begins: what comes at its own times comes as in the block."""
        if self._sending.clients:
            return
        if block != self._block:
            self._block, self._first = block, self._next
        self._next = self._first
        if self._source is not None:
            self._source.cancel()
        self._salt = secrets.token_hex()
        self._source = asyncio.ensure_future(self._come(block))

    def _begin(self, *what: Coroutine[Any, Any, None]) -> None:
        for each in what:
            task = asyncio.ensure_future(each)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._is_over = True
        if self._source is not None:
            self._source.cancel()
        if error is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self) -> None:
        while not self._is_over:
            await self._send(time.perf_counter())

    async def _come(self, block: int) -> None:
        begin = time.perf_counter()
        for due in self._sending.dues(self._first, block):
            await asyncio.sleep(max(0.0, begin + due - time.perf_counter()))
            self._begin(self._send(begin + due))

    async def _send(self, due: float) -> None:
        index = self._next % len(self._sending.requests)
        if index == 0 or not self._salt:
            self._salt = secrets.token_hex()
        self._next, self._sent = self._next + 1, self._sent + 1
        salt, number = self._salt, self._sent
        self.under_way[number] = due
        async with self._slot:
            found = await self._sending.send(self._sending.requests[index], salt)
        if not found.success:
            said = str(found.error).strip().splitlines() or ["none says why"]
            self.failure = self.failure or said[-1]
            await asyncio.sleep(AGAIN_S)
            return
        del self.under_way[number]
        last = first = found.start_time + found.ttft
        output = found.output_tokens or 1 + len(found.itl)
        each = output / (1 + len(found.itl))  # several may come at once
        for gap in (0.0, *found.itl):
            last += gap
            self.ticks[int(last / TICK)] += each
        digest = hashlib.sha256(found.generated_text.encode()).hexdigest()[:16]
        prompt = found.prompt_len
        self.answers.append(Answer(index, due, first, last, prompt, output, digest))


AGAIN_S = 1.0
"""That a client waits after a failure, before the trial is ended for it."""
