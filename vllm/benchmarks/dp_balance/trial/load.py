# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What is sent in a turn: by `vllm bench serve`, or a trace or sessions by us."""

import argparse
import asyncio
import contextlib
import copy
import itertools
import random
import sys
import time
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

from tqdm import tqdm

from ..errors import UsageError
from ..requests.arrivals import ClientTraffic
from ..requests.request import SimRequest
from ..requests.trace_options import add_trace_args, timed_trace_from
from ..requests.traces import read_trace
from ..requests.workload import Workload
from .endpoint import Endpoint

OURS = ("base_url", "save_result", "append_result", "result_filename")
"""Options of `vllm bench serve` that the trial sets."""
WARM_UPS, WARM_UP_TOKENS = 8, 32


class Load(Protocol):
    """The same in every turn of a round; rounds have other prompts or another order."""

    args: argparse.Namespace
    """Its options."""

    def send(self, endpoint: Endpoint, number: int) -> Awaitable[dict[str, Any]]:
        """Sends that of a round; what `vllm bench serve --save-detailed` saves."""

    def as_simulated(self, result: Path) -> tuple[Workload, ClientTraffic]:
        """The same for the simulator; `result` is a file of what was sent."""


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

    def as_simulated(self, result: Path) -> tuple[Workload, ClientTraffic]:
        """The requests that were sent: at their times, unless answers set the pace."""
        concurrency = self.args.max_concurrency
        is_paced = concurrency is not None and self.args.request_rate == float("inf")
        traffic = ClientTraffic(
            concurrency if is_paced else None, self_timed=not is_paced
        )
        return Workload(None, trace=result), traffic


class Replay:
    """A trace at its own times, or sessions, each request after the answer before."""

    def __init__(self, words: Sequence[str], divisor: int, show_progress: bool) -> None:
        """Reads its options, which are those of `simulate`.

        Args:
            words: the options.
            divisor: of all lengths.
            show_progress: on a terminal.

        Raises:
            UsageError: an option is wrong, or the trace.
        """
        parser = Parser(add_help=False)
        add = parser.add_argument
        add("--header", nargs="*")
        add("--insecure", action="store_true")
        add_trace_args(parser.add_argument_group())
        args = self.args = parser.parse_args(list(words))
        if args.dataset_path is None:
            raise UsageError(
                "--replay: give the --dataset-path of a trace or sessions."
            )
        timed = timed_trace_from(args)
        trace = read_trace(args.dataset_path, None, timed)
        self.workload = Workload(
            args.num_prompts,
            trace=args.dataset_path,
            timed_trace=timed,
            session_shared=args.session_shared_tokens,
            session_turns=args.session_turns,
            length_divisor=divisor,
        )
        self.workload.requests(random.Random(0))  # refuses what cannot be sent
        rate, faster = args.request_rate, args.timed_trace_rate_multiplier
        self_timed = trace.is_timed and args.self_timed is not False
        stretches = self_timed and rate < float("inf")
        for name, is_useless in (
            ("burstiness", self_timed or rate == float("inf")),
            ("timed_trace_rate_multiplier", stretches),
        ):
            if is_useless and (given := getattr(args, name)) != 1:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{option} {given}: would change nothing; leave it out."
                )
        if stretches:
            # Its intervals are stretched to that rate.
            rows = trace.rows[: args.num_prompts]
            if (last := rows[-1].time or 0.0) <= 0:
                raise UsageError("--request-rate: all requests have the same time.")
            faster, rate = last * rate / len(rows), float("inf")
        self.traffic = ClientTraffic(
            args.max_concurrency, rate, args.burstiness, self_timed, faster
        )
        self._hides_progress = None if show_progress else True  # None: on no terminal

    def as_simulated(self, result: Path) -> tuple[Workload, ClientTraffic]:
        """The same."""
        return self.workload, self.traffic

    async def send(self, endpoint: Endpoint, number: int) -> dict[str, Any]:
        """Sends the requests that the simulator would."""
        import aiohttp
        from vllm.benchmarks.lib.endpoint_request_func import (
            AIOHTTP_TIMEOUT,
            RequestFuncInput,
            async_request_openai_completions,
        )
        from vllm.tokenizers import get_tokenizer

        model, root = endpoint.model()
        prompts = Prompts(get_tokenizer(root), self.args.seed + number)
        requests = self.workload.requests(random.Random(f"lengths {number}"))
        by_session = itertools.groupby(requests, key=lambda request: request.session)
        sessions = [list(each) for _, each in by_session]
        due = self.traffic.due_times([s[0] for s in sessions], random.Random(number))
        room = asyncio.Semaphore(self.traffic.max_concurrency or len(sessions))
        url = f"{endpoint.url}/v1/completions"

        async def ask(request: SimRequest) -> Any:
            prompt = prompts.of(request)
            asked = RequestFuncInput(
                *(prompt, url, len(prompt), request.output_len, model),
                extra_headers=endpoint.headers,
                ignore_eos=True,
            )
            return await async_request_openai_completions(asked, http)

        async def client(session: Sequence[SimRequest], at: float) -> list[Any]:
            await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
            found = []
            async with room:
                for request in session:
                    pause = (request.think or 0.0) / self.traffic.rate_multiplier
                    await asyncio.sleep(pause)
                    found.append(await ask(request))
                    bar.update()
            return found

        # An idle connection may end just when the next request goes.
        connections = aiohttp.TCPConnector(
            limit=0, force_close=True, ssl=endpoint.verify
        )
        async with aiohttp.ClientSession(
            connector=connections, timeout=AIOHTTP_TIMEOUT, read_bufsize=2**18
        ) as http:
            lengths = WARM_UP_TOKENS, WARM_UP_TOKENS
            extra = [SimRequest(-1 - n, *lengths) for n in range(WARM_UPS)]
            await asyncio.gather(*map(ask, extra))
            with tqdm(
                total=len(requests), unit="req", disable=self._hides_progress
            ) as bar:
                begin = time.perf_counter()
                answers = await asyncio.gather(*map(client, sessions, due))
        rows = list(itertools.chain.from_iterable(answers))
        return _saved(rows)


def _saved(rows: Sequence[Any]) -> dict[str, Any]:
    fields = {
        "input_lens": "prompt_len",
        "output_lens": "output_tokens",
        "start_times": "start_time",
        "ttfts": "ttft",
        "itls": "itl",
        "generated_texts": "generated_text",
        "errors": "error",
    }
    completed = sum(row.success for row in rows)
    found = {name: [getattr(row, f) for row in rows] for name, f in fields.items()}
    return {"completed": completed, "failed": len(rows) - completed, **found}


class Prompts:
    """The tokens of requests: those of a chunk are drawn by its hash id."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        special = set(tokenizer.all_special_ids)
        tokens = [i for i in range(len(tokenizer)) if i not in special]
        self._drawn = lru_cache(1 << 16)(
            lambda name, count: random.Random(f"{seed} {name}").choices(tokens, k=count)
        )

    def of(self, request: SimRequest) -> list[int]:
        """Whole chunks, and then tokens of its own."""
        size, length = request.chunk_size, request.prompt_len
        ids = itertools.islice(request.hash_ids, -(-length // size))
        chunks = (self._drawn(each, size) for each in ids)
        found = list(itertools.chain.from_iterable(chunks))[:length]
        return found + self._drawn(f"own {request.index}", length - len(found))
