# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Bounds what `structured_outputs` may cost: in bytes, in memory and in time.

What a compiler takes does not follow from what a grammar repeats, so only bytes are
counted. What may be large is checked and compiled first in a process of the front-end
that can be ended. A rank compiles in threads that all others go before.
"""

import asyncio
import contextlib
import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from vllm.fixes.limits import limit, too_large
from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.engine.input_processor import InputProcessor

logger = init_logger(__name__)

BYTES = "VLLM_MAX_GRAMMAR_BYTES"
MOST_BYTES = limit(BYTES, 2 << 20)
"""Characters of one constraint; the largest schemas that people ship have 2 MB."""

REGEX_SECONDS = "VLLM_REGEX_COMPILATION_TIMEOUT_S"
MOST_REGEX_SECONDS = limit(REGEX_SECONDS, 5)

SECONDS = "VLLM_GRAMMAR_COMPILATION_TIMEOUT_S"
MOST_SECONDS = limit(SECONDS, 30)
"""Seconds for any other grammar. With 150,000 tokens xgrammar takes 5 s for a
`maxLength`, whatever its number."""

SMALL = 4096
"""Characters that are checked in the event loop, if nothing in them is `_SLOW`."""

QUICK = 512
"""Characters that compile within seconds, if nothing in them repeats often."""

TRIAL_BYTES = 4 << 30
"""More memory that a trial may take. xgrammar takes the square of the length of a
regular expression (1.1 GB for 32,000 characters), outlines exponentially more."""

_PROGRAM = ("-m", "vllm.fixes.trial")
_FIELDS = ("json", "regex", "choice", "grammar", "structural_tag")
_OFTEN = re.compile(r"\d{3}")
_SLOW = re.compile(r"\{\d|patternProperties")
"""xgrammar takes time with the square of what a pattern counts; outlines, which alone
has the other, with the power of what a schema refers to."""


def check_constraint(constraint: "StructuredOutputsParams") -> None:
    """Refuses a constraint by its size, with status 400, before anything parses it."""
    if MOST_BYTES <= 0 or constraint._backend:
        return  # it was looked at before upstream wrote its choices as a grammar
    for name in _FIELDS:
        value = getattr(constraint, name)
        if value is not None and _characters(value, MOST_BYTES) > MOST_BYTES:
            what = "is too long"
            raise too_large(f"structured_outputs.{name}", what, MOST_BYTES, BYTES)


def _characters(value: object, most: int) -> int:
    """Characters of a text or of all texts of a JSON value, to soon after `most`."""
    total, left = 0, [value]
    while left and total <= most:
        each = left.pop()
        if isinstance(each, str):
            total += len(each) + 3
        elif isinstance(each, dict):
            left.extend(each)
            left.extend(each.values())
        elif isinstance(each, (list, tuple)):
            left.extend(each)
        else:
            total += 8
    return total


_checkers = ThreadPoolExecutor(2, "grammar-check")


async def check_beside(processor: "InputProcessor", params: Any) -> None:
    """Checks a constraint that may be large in a process, as upstream's check blocks.

    Upstream checks once more in the event loop, where `was_checked` tells it to skip.
    """
    constraint = getattr(params, "structured_outputs", None)
    if (
        constraint is None
        or was_checked(constraint)
        or _is_small(processor, constraint)
    ):
        return
    if not hasattr(processor, "balance_trial"):
        configs = processor.model_config, processor.structured_outputs_config
        processor.balance_trial = _Trial(*configs)
    seconds, name = _limit_of(constraint.regex is not None)
    ask, loop = processor.balance_trial.ask, asyncio.get_running_loop()
    try:
        told = await loop.run_in_executor(_checkers, ask, constraint, seconds)
    except (OSError, RuntimeError) as error:  # also if it is too deep to be sent
        logger.error("Structured outputs are checked without limits: %s", error)
        return
    if told is None:
        raise _late(seconds, name)
    if isinstance(told, str):
        raise ValueError(told)
    vars(constraint).update(told)
    constraint.was_checked = True


def _is_small(processor: "InputProcessor", constraint: Any) -> bool:
    """Whether upstream's check and a compiler take some milliseconds, and megabytes."""
    if processor.structured_outputs_config.backend == "outlines":
        return False
    given = [getattr(constraint, name) for name in _FIELDS]
    return all(_characters(each, SMALL) <= SMALL for each in given) and not any(
        each is not None and _SLOW.search(json.dumps(each)) for each in given
    )


def _limit_of(is_regex: bool) -> tuple[int, str]:
    if is_regex:
        return MOST_REGEX_SECONDS, REGEX_SECONDS
    return MOST_SECONDS, SECONDS


def was_checked(constraint: Any) -> bool:
    """Whether `check_beside` has checked it."""
    return bool(getattr(constraint, "was_checked", False))


def _late(seconds: int, name: str) -> ValueError:
    return ValueError(
        f"structured_outputs take longer than {seconds} s to compile ({name}), or too "
        "much memory"
    )


class GrammarExecutor:
    """Compiles grammars of requests, and gives up those that take too long.

    As upstream's executor, of which only `submit` is used. What is quick has threads of
    its own, so that it need not wait for what is not.
    """

    def __init__(self) -> None:
        self._workers: dict[bool, _Workers] = {}

    def submit(self, create: Any, request: Any) -> "Future[Any]":
        """The grammar that `create(request)` makes."""
        kind, spec = request.structured_output_request.structured_output_key
        seconds, name = _limit_of(kind.name == "REGEX")
        quick = len(spec) <= QUICK and not _OFTEN.search(spec)
        if quick not in self._workers:
            self._workers[quick] = _Workers(8 if quick else 4)
        late = _late(seconds, name)
        return self._workers[quick].submit(lambda: create(request), seconds, late)


class _Workers:
    """Threads for work that cannot be stopped: what is late is only given up."""

    def __init__(self, count: int) -> None:
        self._todo: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._given: SimpleQueue[tuple[Future[Any], float, Exception]] = SimpleQueue()
        for target in (*[self._work] * count, self._give_up):
            threading.Thread(target=target, name="grammar", daemon=True).start()

    def submit(
        self, work: Callable[[], Any], seconds: int, late: Exception
    ) -> "Future[Any]":
        """What `work` returns or raises, or `late` after the seconds, if not 0."""
        result: Future[Any] = Future()
        self._todo.put((result, work))
        if seconds > 0:
            self._given.put((result, time.monotonic() + seconds, late))
        return result

    def _work(self) -> None:
        with contextlib.suppress(OSError):  # its compiler's threads have it from this
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while True:
            result, work = self._todo.get()
            if result.done():
                continue
            value, raised = None, None
            try:
                value = work()
            except BaseException as error:
                raised = error
            with contextlib.suppress(InvalidStateError):  # given up meanwhile
                result.set_exception(raised) if raised else result.set_result(value)

    def _give_up(self) -> None:
        while True:
            result, ends, late = self._given.get()
            wait([result], max(0, ends - time.monotonic()))
            with contextlib.suppress(InvalidStateError):
                result.set_exception(late)


class _Trial:
    """A process of `vllm.fixes.trial`.

    It begins anew after a constraint that it did not survive, and ends with this one.
    """

    def __init__(self, *configs: object) -> None:
        self._lock = threading.Lock()
        self._configs = configs
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, constraint: Any, seconds: int) -> Any:
        """What upstream makes of it, or says of it; None if it passes the limits.

        Raises:
            RuntimeError: there is no such process, or nothing can be sent to it.
        """
        order = pickle.dumps((constraint, max(0, seconds)))
        with self._lock:
            process = self.process = self.process or self._begin()
            told = _answer(process, order)
            if told is None:
                process.wait()
                self.process = None
            return told

    def _begin(self) -> "subprocess.Popen[bytes]":
        more = {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # it needs no device
        }
        process = subprocess.Popen(
            [sys.executable, *_PROGRAM, str(TRIAL_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | more,
        )
        if _answer(process, pickle.dumps(self._configs)) is None:
            raise RuntimeError("the process that tries grammars could not begin")
        return process


def _answer(process: "subprocess.Popen[bytes]", order: bytes) -> Any:
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write(order)
        process.stdin.flush()
        return pickle.load(process.stdout)
    except (OSError, EOFError):
        return None
