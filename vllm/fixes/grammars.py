# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Bounds what `structured_outputs` may cost: in bytes, in memory and in time.

What a compiler takes does not follow from what a grammar repeats, so only bytes are
counted. What may be large is checked and compiled first in a process of the front-end
that can be ended. A rank compiles in threads that all others go before.
"""

import asyncio
import json
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from vllm.fixes.limits import limit, too_large
from vllm.logger import init_logger

logger = init_logger(__name__)

BYTES = "VLLM_MAX_GRAMMAR_BYTES"
MOST_BYTES = limit(BYTES, 2 << 20)
"""Characters of one constraint; the largest schemas that people ship have 2 MB."""

MOST_REGEX_SECONDS = limit("VLLM_REGEX_COMPILATION_TIMEOUT_S", 5)
MOST_SECONDS = limit("VLLM_GRAMMAR_COMPILATION_TIMEOUT_S", 30)
"""With 150,000 tokens xgrammar takes 5 s for any `maxLength`."""

SMALL = 4096
"""Characters that are checked in the event loop, if nothing in them is `_SLOW`."""

QUICK = 512
"""Characters that compile within seconds, if nothing in them repeats `_OFTEN`."""

TRIAL_BYTES = 4 << 30
"""More that a trial may take; xgrammar takes 1.1 GB for a `regex` of 32,000 letters."""

TRIALS, WAIT_SECONDS = 2, 90
"""How many there may be, and what each may wait for others and a busy machine."""

_START = """import sys; del sys.path[0]  # whatever there is in the current folder
import ctypes; ctypes.CDLL(None).prctl(1, 9)  # ends with the front-end, also in imports
from vllm.fixes.trial import main; main()"""
_PROGRAM = (sys.executable, "-c", _START)
_encoded = json.JSONEncoder(ensure_ascii=False, default=str).encode
_FIELDS = ("json", "regex", "choice", "grammar", "structural_tag")
_OFTEN = re.compile(r"\d{3}")
_SLOW = re.compile(r"\{\d|patternProperties")
"""xgrammar takes time with the square of what a pattern counts; outlines, which alone
has the other, with the power of what a schema refers to."""


def check_constraint(constraint: Any) -> None:
    """Refuses a constraint by its size, with status 400, before anything parses it."""
    if MOST_BYTES <= 0 or constraint._backend:
        return  # it was looked at before upstream wrote its choices as a grammar
    for name in _FIELDS:
        if len(_text(getattr(constraint, name))) > MOST_BYTES:
            what = "is too long"
            raise too_large(f"structured_outputs.{name}", what, MOST_BYTES, BYTES)


def _text(value: object) -> str:
    """A text, or a JSON value as one; empty if it has more levels than are taken."""
    try:
        return value if isinstance(value, str) else _encoded(value)
    except RecursionError:
        return ""


async def check_beside(processor: Any, params: Any) -> None:
    """Checks a constraint that may be large in a process, as upstream's check blocks.

    Upstream checks once more in the event loop, where `was_checked` tells it to skip.
    """
    of = getattr(params, "structured_outputs", None)
    if of is None or was_checked(of) or _is_small(processor, of):
        return
    processor.balance_trial = getattr(processor, "balance_trial", _Trial(processor))
    seconds, late = _limit_of(of.regex is not None)
    longest = seconds and seconds + WAIT_SECONDS
    try:
        asked = processor.balance_trial.ask(of, seconds or 0)
        told = await asyncio.wait_for(asked, longest)
    except (asyncio.TimeoutError, BlockingIOError):
        raise ValueError(
            "this server has too many large structured_outputs to check these within "
            f"{longest} s; try again later"
        ) from None
    except (OSError, RuntimeError) as error:  # also if it is too deep to be sent
        logger.error("Structured outputs are checked without limits: %s", error)
        return
    if told is None:
        raise late
    if isinstance(told, str):
        raise ValueError(told)
    vars(of).update(told)
    of.was_checked = True


def _is_small(processor: Any, constraint: Any) -> bool:
    """Whether upstream's check and a compiler take some milliseconds, and megabytes."""
    texts = [_text(getattr(constraint, name)) for name in _FIELDS]
    return processor.structured_outputs_config.backend != "outlines" and not any(
        len(text) > SMALL or _SLOW.search(text) for text in texts
    )


def was_checked(constraint: Any) -> bool:
    """Whether `check_beside` has checked it."""
    return bool(getattr(constraint, "was_checked", False))


def _limit_of(is_regex: bool) -> tuple[int | None, ValueError]:
    """Seconds, None for no limit, and what says that they have passed."""
    seconds = MOST_REGEX_SECONDS if is_regex else MOST_SECONDS
    name = "REGEX" if is_regex else "GRAMMAR"
    return max(0, seconds) or None, ValueError(
        f"structured_outputs take longer than {seconds} s to compile "
        f"(VLLM_{name}_COMPILATION_TIMEOUT_S), or too much memory"
    )


class FailedGrammar:
    """Stands for a grammar that does not exist: it rejects every token.

    Upstream raises the compiler's error in `schedule`, which ends the engine and with
    it all ranks. It ends a request whose token is rejected with an error, and the
    client gets status 500. Until then nothing is masked.
    """

    def __init__(self, error: BaseException) -> None:
        logger.error("A grammar could not be compiled; its request fails: %s", error)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return False

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return []

    def is_terminated(self) -> bool:
        return True  # so that upstream masks nothing

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """There is nothing to mask."""

    def rollback(self, num_tokens: int) -> None:
        """There is no state."""

    def reset(self) -> None:
        """There is no state."""


class GrammarExecutor:
    """Gives up what is late, which keeps its thread; so what is quick has others."""

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(8, "grammar", os.nice, (10,))
        self._other = ThreadPoolExecutor(4, "grammar", os.nice, (10,))
        self._clock = asyncio.new_event_loop()
        threading.Thread(target=self._clock.run_forever, daemon=True).start()

    def submit(self, create: Any, request: Any) -> "Future[Any]":
        """The grammar that `create(request)` makes, or a `FailedGrammar`."""
        kind, spec = request.structured_output_request.structured_output_key
        seconds, late = _limit_of(kind.name == "REGEX")
        is_quick = len(spec) <= QUICK and not _OFTEN.search(spec)
        made = (self._quick if is_quick else self._other).submit(create, request)

        async def in_time() -> Any:
            try:
                return await asyncio.wait_for(asyncio.wrap_future(made), seconds)
            except asyncio.TimeoutError:
                return FailedGrammar(late)
            except BaseException as error:  # also a panic in Rust
                return FailedGrammar(error)

        return asyncio.run_coroutine_threadsafe(in_time(), self._clock)


class _Trial:  # a process of `vllm.fixes.trial`, whose forks try constraints
    def __init__(self, of: Any) -> None:
        self._configs = of.model_config, of.structured_outputs_config
        self._begins, self._free = asyncio.Lock(), asyncio.Semaphore(TRIALS)
        self.process: subprocess.Popen[bytes] | None = None

    async def ask(self, constraint: Any, seconds: int) -> Any:
        """What upstream makes of it, or says of it; None if it passes the limits."""
        loop, told = asyncio.get_running_loop(), b""
        order = pickle.dumps((constraint, seconds))
        async with self._free:
            async with self._begins:
                if self.process is None or self.process.poll() is not None:
                    await self._begin()
            link, theirs = socket.socketpair()
            with link:
                link.setblocking(False)
                try:
                    with theirs:
                        socket.send_fds(self.control, [b"."], [theirs.fileno()])
                    await loop.sock_sendall(link, order)
                    while part := await loop.sock_recv(link, 1 << 20):
                        told += part
                    return pickle.loads(told)
                except (ConnectionError, EOFError, pickle.UnpicklingError):
                    return None

    async def _begin(self) -> None:
        loop, path = asyncio.get_running_loop(), os.pathsep.join(sys.path)
        env = os.environ | {"PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        command = [*_PROGRAM, str(TRIAL_BYTES)]
        self.control, theirs = socket.socketpair()
        self.control.setblocking(False)
        with theirs:
            self.process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=env
            )
        try:
            await loop.sock_sendall(self.control, pickle.dumps(self._configs))
            if not await loop.sock_recv(self.control, 9):
                raise RuntimeError("the process that tries grammars could not begin")
        except BaseException:
            self.process.kill()
            raise
