# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A load of `vllm bench serve`, sent again and again until it is stopped."""

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
    """A parser that raises `UsageError`, and does not exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.")


class Sending(NamedTuple):
    """A load that is ready to be sent to a server."""

    requests: Sequence[Any]
    send: Callable[[Any, str], Awaitable[Any]]
    """Sends one of them with a salt, and returns what `vllm bench serve` measures."""
    clients: int | None
    """Clients of a closed loop, which send one request after the other; else None."""
    rate: float = math.inf
    """Requests that come per second; infinite if each has its `timestamp`."""
    burstiness: float = 1.0
    max_concurrency: int | None = None
    """Requests of an open loop that may be under way at a time."""
    limits: Limits = Limits()

    def dues(self, first: int, seed: int) -> Iterator[float]:
        """Seconds after which requests come, endlessly, from number `first` on."""
        rng = random.Random(seed)
        count, due = len(self.requests), 0.0
        for index in itertools.count(first):
            if self.rate < math.inf:
                scale = 1 / (self.rate * self.burstiness)
                due += rng.gammavariate(self.burstiness, scale)
            elif index > first:
                times = [self.requests[x % count].timestamp for x in (index - 1, index)]
                # The last one waits for the first as long as requests do on average.
                mean_gap = self.requests[-1].timestamp / count
                due += times[1] - times[0] if index % count else mean_gap
            yield due


class Load:
    """A load that `vllm bench serve` can send."""

    def __init__(self, options: Sequence[str], log: Path) -> None:
        """Reads the options of `vllm bench serve`, whose output goes to `log`.

        Raises:
            UsageError: an option is wrong.
        """
        # Imported here, because the simulator runs without vLLM.
        from vllm.benchmarks.serve import add_cli_args
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        if "VLLM_LOGGING_LEVEL" not in os.environ:  # else it says what it runs on
            logging.getLogger("vllm").setLevel(logging.WARNING)

        parser = type("Parser", (Parser, FlexibleArgumentParser), {})(add_help=False)
        add_cli_args(parser)
        self.args = parser.parse_args(list(options))
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
            UsageError: none is found; the server may name a folder of its own machine.
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
            reason = "is no folder here" if name.startswith("/") else str(error)
            raise UsageError(
                f"--tokenizer: none of {name}, the model of {endpoint.url}, is found "
                f"({reason.strip().splitlines()[0]:.200}); give a folder that has it, "
                "or its name on the hub."
            ) from None

    @contextlib.asynccontextmanager
    async def sending(self, endpoint: Endpoint) -> AsyncIterator[Sending]:
        """Makes the requests, and a session of HTTP in which they are sent.

        Raises:
            UsageError: the requests cannot be made.
        """
        import aiohttp
        from vllm.benchmarks import serve

        kwargs = await self._prepared(endpoint)
        send = serve.ASYNC_REQUEST_FUNCS[kwargs["endpoint_type"]]
        closed = kwargs["request_rate"] == float("inf") and not kwargs["self_timed"]
        max_concurrency, ssl = kwargs["max_concurrency"], kwargs["ssl_context"]
        goodput = kwargs["goodput_config_dict"] or {}
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

            async def send_request(request: Any, salt: str) -> Any:
                body = {**(kwargs["extra_body"] or {}), "cache_salt": salt}
                sent = serve.RequestFuncInput(
                    model=kwargs["model_id"],
                    model_name=kwargs["model_name"],
                    prompt=request.prompt,
                    api_url=kwargs["api_url"],
                    prompt_len=request.prompt_len,
                    output_len=request.expected_output_len,
                    logprobs=kwargs["logprobs"],
                    multi_modal_content=request.multi_modal_data,
                    ignore_eos=kwargs["ignore_eos"],
                    extra_headers=kwargs["extra_headers"],
                    extra_body=body,
                )
                return await send(sent, session=session)

            yield Sending(
                kwargs["input_requests"],
                send_request,
                max_concurrency if closed else None,
                kwargs["request_rate"],
                kwargs["burstiness"],
                None if closed else max_concurrency,
                limits,
            )

    async def _prepared(self, endpoint: Endpoint) -> dict[str, Any]:
        """The arguments that `vllm bench serve` gives to its `benchmark`."""
        from vllm.benchmarks import serve

        args = copy.copy(self.args)
        args.base_url = endpoint.url
        if args.model is None:
            args.served_model_name, args.model = endpoint.model()

        class Prepared(Exception):  # noqa: N818
            pass

        async def keep(**kwargs: Any) -> None:
            raise Prepared(kwargs)

        module: Any = serve  # the arguments of its function differ by release
        run, module.benchmark = module.benchmark, keep
        try:
            with self._log.open("w") as log, contextlib.redirect_stdout(log):
                await serve.main_async(args)
        except Prepared as prepared:
            kwargs: dict[str, Any] = prepared.args[0]
            return kwargs
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"vllm bench serve: {error} Its log: {self._log}"
            ) from None
        finally:
            module.benchmark = run
        raise AssertionError("`vllm bench serve` sends by its function `benchmark`")


class Traffic:
    """Sends a load, as an asynchronous context manager whose end awaits all answers.

    In a closed loop the requests are sent again when all were, with another salt, so
    that the prefix cache has no block of them. In an open loop all stretches of a block
    get the same requests at the same times, each with its salt, so that chance meets
    all policies alike.
    """

    def __init__(self, sending: Sending) -> None:
        self.answers: list[Answer] = []
        self.ticks: dict[int, float] = defaultdict(float)
        self.under_way: dict[int, float] = {}
        """When the unanswered requests were due, by the order of sending."""
        self.failure = ""
        self._sending = sending
        self._is_over = False
        self._sent = 0
        self._salt = ""
        self._block, self._first, self._next = -1, 0, 0
        self._tasks: set[asyncio.Future[None]] = set()
        self._source: asyncio.Future[None] | None = None
        slots = sending.max_concurrency
        self._slot = asyncio.Semaphore(slots) if slots else contextlib.nullcontext()

    async def __aenter__(self) -> "Traffic":
        clients = self._sending.clients or 0
        self._begin(*(self._client() for _ in range(clients)))
        return self

    def begin(self, block: int) -> None:
        """Begins a stretch: an open loop begins anew with the block's requests."""
        if self._sending.clients:
            return
        if block != self._block:
            self._block, self._first = block, self._next
        self._next = self._first
        if self._source is not None:
            self._source.cancel()
        self._salt = secrets.token_hex()
        self._source = asyncio.ensure_future(self._come(block))

    def _begin(self, *coroutines: Coroutine[Any, Any, None]) -> None:
        for coroutine in coroutines:
            task = asyncio.ensure_future(coroutine)
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
            result = await self._sending.send(self._sending.requests[index], salt)
        if not result.success:
            error_lines = str(result.error).strip().splitlines() or ["none says why"]
            self.failure = self.failure or error_lines[-1]
            await asyncio.sleep(AGAIN_S)
            return
        del self.under_way[number]
        last = first = result.start_time + result.ttft
        output = result.output_tokens or 1 + len(result.itl)
        tokens = output / (1 + len(result.itl))  # several may come at once
        for gap in (0.0, *result.itl):
            last += gap
            self.ticks[int(last / TICK)] += tokens
        digest = hashlib.sha256(result.generated_text.encode()).hexdigest()[:16]
        prompt = result.prompt_len
        self.answers.append(Answer(index, due, first, last, prompt, output, digest))


AGAIN_S = 1.0
"""Seconds that a client waits after a failure, which then ends the trial."""
