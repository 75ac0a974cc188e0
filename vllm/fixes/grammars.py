# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Bounds what `structured_outputs` may cost: in bytes, in memory and in time.

What a compiler takes does not follow from what a grammar repeats, so only bytes are
counted. A front-end checks what is long beside its event loop. A rank compiles in
threads that all others go before, what may be large first in a process of limited
memory.
"""

import asyncio
import contextlib
import json
import os
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

if TYPE_CHECKING:
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.engine.input_processor import InputProcessor

BYTES = "VLLM_MAX_GRAMMAR_BYTES"
MOST_BYTES = limit(BYTES, 2 << 20)
"""Characters of one constraint; the largest schemas that people ship have 2 MB.
xgrammar parses 330 kB of nested alternatives in 0.2 s, 4.7 MB in 10 s."""

REGEX_SECONDS = "VLLM_REGEX_COMPILATION_TIMEOUT_S"
MOST_REGEX_SECONDS = limit(REGEX_SECONDS, 5)

SECONDS = "VLLM_GRAMMAR_COMPILATION_TIMEOUT_S"
MOST_SECONDS = limit(SECONDS, 30)
"""Seconds for any other grammar. With 150,000 tokens xgrammar takes 5 s for a
`maxLength`, whatever its number."""

SMALL = 4096
"""Characters that are checked in the event loop, and of which xgrammar makes nothing
large: some milliseconds, some megabytes."""

QUICK = 512
"""Characters that compile within seconds, if nothing in them repeats often."""

TRIAL_BYTES = 4 << 30
"""Address space of a trial. xgrammar takes memory with the square of the length of a
regular expression (1.1 GB for 32,000 characters), outlines exponentially more."""

BEGINS_S = 20
"""Seconds in which the process of trials begins, also on a busy machine."""

_FIELDS = ("json", "regex", "choice", "grammar", "structural_tag")
_OFTEN = re.compile(r"\d{3}")


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


def _after_others() -> None:
    """Lets every other thread of this machine go first, and those it starts, too."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


_checkers = ThreadPoolExecutor(2, "grammar-check", initializer=_after_others)


async def check_beside(processor: "InputProcessor", params: Any) -> None:
    """Runs upstream's check of a large constraint, which blocks, in a thread.

    Upstream runs it once more in the event loop, where `was_checked` tells it to skip.
    """
    constraint = getattr(params, "structured_outputs", None)
    if constraint is None or was_checked(constraint):
        return
    if all(_characters(getattr(constraint, name), SMALL) <= SMALL for name in _FIELDS):
        return
    check = asyncio.get_running_loop().run_in_executor(
        _checkers,
        lambda: params.verify(
            processor.model_config,
            processor.speculative_config,
            processor.structured_outputs_config,
            processor.tokenizer,
        ),
    )
    try:
        await asyncio.wait_for(check, MOST_SECONDS if MOST_SECONDS > 0 else None)
    except asyncio.TimeoutError:
        raise _late(MOST_SECONDS, SECONDS) from None
    constraint.was_checked = True


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

    def __init__(self, manager: Any) -> None:
        """`manager` is upstream's `StructuredOutputManager`."""
        self._manager = manager
        self._workers: dict[tuple[bool, str], _Workers] = {}
        self._trial = _Trial()

    def submit(self, create: Any, request: Any) -> "Future[Any]":
        """The grammar that `create(request)` makes."""
        kind, spec = request.structured_output_request.structured_output_key
        seconds, name = MOST_SECONDS, SECONDS
        if kind.name == "REGEX":
            seconds, name = MOST_REGEX_SECONDS, REGEX_SECONDS
        late = _late(seconds, name)
        backend = type(self._manager.backend).__module__.rpartition("_")[2]
        tried = seconds > 0 and (
            backend == "outlines" or (backend == "xgrammar" and len(spec) > SMALL)
        )
        quick = not tried and len(spec) <= QUICK and not _OFTEN.search(spec)

        def compile_it() -> Any:
            if tried and not self._trial.ends(backend, kind.name, spec, seconds):
                raise late
            return create(request)

        if (quick, name) not in self._workers:
            self._workers[quick, name] = _Workers(8 if quick else 4)
        begins = BEGINS_S if tried and not self._trial.process else 0
        return self._workers[quick, name].submit(compile_it, seconds, begins, late)


class _Workers:
    """Threads for work that cannot be stopped: what is late is only given up."""

    def __init__(self, count: int) -> None:
        self._todo: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._given: SimpleQueue[tuple[Future[Any], float, Exception]] = SimpleQueue()
        for target in (*[self._work] * count, self._give_up):
            threading.Thread(target=target, name="grammar", daemon=True).start()

    def submit(
        self, work: Callable[[], Any], seconds: int, more: int, late: Exception
    ) -> "Future[Any]":
        """What `work` returns or raises, or `late` after the seconds, if not 0."""
        result: Future[Any] = Future()
        self._todo.put((result, work))
        if seconds > 0:
            self._given.put((result, time.monotonic() + seconds + more, late))
        return result

    def _work(self) -> None:
        _after_others()
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


_TRIAL = """
import json, os, resource, signal, sys
os.nice(10)
import outlines_core, xgrammar
from outlines_core.json_schema import build_regex_from_schema
tokens = [bytes([i]) for i in range(256)]
vocabulary = outlines_core.Vocabulary(256, {each: [each[0]] for each in tokens})
info = xgrammar.TokenizerInfo(tokens, stop_token_ids=[0])
compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

def tag(text):
    if "structures" not in json.loads(text):
        return compiler.compile_structural_tag(text)
    for each in json.loads(text)["structures"]:
        compiler.compile_json_schema(json.dumps(each["schema"]))

def index(text):
    outlines_core.Index(text, vocabulary)

ways = {
    "xgrammar JSON": compiler.compile_json_schema,
    "xgrammar REGEX": compiler.compile_regex,
    "xgrammar GRAMMAR": compiler.compile_grammar,
    "xgrammar STRUCTURAL_TAG": tag,
    "outlines JSON": lambda text: index(build_regex_from_schema(text)),
    "outlines REGEX": index,
}
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
print("ready", flush=True)
for line in sys.stdin:
    way, text, seconds = json.loads(line)
    signal.alarm(seconds)
    try:
        ways.get(way, str)(text)
    except MemoryError:
        break
    except BaseException:
        pass  # the compiler of the rank will say so
    signal.alarm(0)
    print("ended", flush=True)
"""


class _Trial:
    """A process that compiles for a vocabulary of bytes, in limited memory and time.

    It begins anew after a text that it did not survive, and ends with this process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None

    def ends(self, backend: str, kind: str, text: str, seconds: int) -> bool:
        """Whether it compiles that, or refuses it, within its limits."""
        with self._lock:
            process = self.process or self._begin()
            assert process.stdin
            assert process.stdout
            with contextlib.suppress(BrokenPipeError):
                order = (f"{backend} {kind}", text, seconds)
                print(json.dumps(order), file=process.stdin, flush=True)
            if process.stdout.readline():
                return True
            process.wait()
            self.process = None
            return False

    def _begin(self) -> "subprocess.Popen[str]":
        more = {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # it needs no device
        }
        process = subprocess.Popen(
            [sys.executable, "-c", _TRIAL, str(TRIAL_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | more,
        )
        assert process.stdout
        if not process.stdout.readline():
            raise RuntimeError("the process that tries grammars could not begin")
        self.process = process
        return process
