# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Bounds what `structured_outputs` may cost: in size, in repetition, and in time.

A front-end checks a grammar before it sends the request, an engine compiles it. Both
take time that grows faster than the text, and with what a repetition unrolls to. So
text and unrolled size are limited before anything is parsed, what is left is checked
beside the event loop and compiled beside the engine's, and both are given up in time.
"""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any

from vllm.fixes.limits import limit, too_large

if TYPE_CHECKING:
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.engine.input_processor import InputProcessor

BYTES = "VLLM_MAX_GRAMMAR_BYTES"
MOST_BYTES = limit(BYTES, 256 * 1024)
"""Characters of one constraint. xgrammar parses 330 kB of nested alternatives in 0.2 s,
4.7 MB in 10 s."""

STATES = "VLLM_MAX_GRAMMAR_STATES"
MOST_STATES = limit(STATES, 20_000)
"""States to which repetitions may unroll, and characters in a row. With 150,000 tokens
xgrammar compiles `.{0,5000}` in 6 s."""

REGEX_SECONDS = "VLLM_REGEX_COMPILATION_TIMEOUT_S"
MOST_REGEX_SECONDS = limit(REGEX_SECONDS, 5)

SECONDS = "VLLM_GRAMMAR_COMPILATION_TIMEOUT_S"
MOST_SECONDS = limit(SECONDS, 30)
"""Seconds for any other grammar. With 150,000 tokens xgrammar takes 5 s for a
`maxLength` of 1,000."""

SMALL = 4096
"""Characters that are checked in the event loop: some milliseconds."""

FEW_STATES = 32
"""States to which a short grammar unrolls."""

TRIAL_BYTES = 4 << 30
"""Address space of a trial."""

_TRIAL = f"""
import json, resource, sys
import outlines_core as oc
resource.setrlimit(resource.RLIMIT_AS, ({TRIAL_BYTES}, {TRIAL_BYTES}))
for text in json.load(sys.stdin):
    oc.Index(text, oc.Vocabulary(256, {{bytes([i]): [i] for i in range(256)}}))
"""
"""Makes the automata of regular expressions as outlines does, without its tokens: as a
whole, so that their states may be exponential in a short text."""
_FIELDS = ("json", "regex", "choice", "grammar", "structural_tag")
_QUANTIFIER = re.compile(r"\{(\d*)(,?)(\d*)\}")
_CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
_PROPERTY = re.compile(r"\{\^?[A-Za-z_=]+\}")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_UNICODE_CLASS = 20
"""States of `\\p{L}`, about: its ranges of UTF-8."""
_PROSE = {"description", "title", "$comment", "default", "examples", "pattern"}
_LENGTHS = ("maxLength", "minLength")
_COUNTS = ("maxItems", "minItems", "maxProperties", "minProperties")


def check_constraint(constraint: "StructuredOutputsParams") -> None:
    """Checks the size of a constraint before anything parses it.

    Raises:
        VLLMValidationError: the client gets status 400.
    """
    for name in _FIELDS:
        value = getattr(constraint, name)
        if value is None:
            continue
        field = f"structured_outputs.{name}"
        if MOST_BYTES > 0 and _characters(value) > MOST_BYTES:
            raise too_large(field, "is too long", MOST_BYTES, BYTES)
        if MOST_STATES > 0 and _states(name, value) > MOST_STATES:
            what = "repeats or spells out too much"
            raise too_large(field, what, MOST_STATES, STATES)


def _characters(value: object) -> int:
    """Characters of a text or of all texts of a JSON value, to soon after the limit."""
    total, left = 0, [value]
    while left and total <= MOST_BYTES:
        each = left.pop()
        if isinstance(each, str):
            total += len(each) + 3
        elif isinstance(each, dict):
            left.extend(each)
            left.extend(each.values())
        elif isinstance(each, (list, tuple)):
            left.extend(each)
        elif isinstance(each, int):
            total += 2 + each.bit_length() // 3
        else:
            total += 8
    return total


def _states(name: str, value: Any) -> int:
    """What the repetitions of a constraint unroll to, or its longest literal."""
    if name == "regex":
        return regex_states(value)
    if name == "choice":
        return max(map(len, value), default=0)
    if name == "grammar":
        literals = max((len(each) for each in _QUOTED.findall(value)), default=0)
        text = _QUOTED.sub("a", value)
        return max(literals, _unrolled(text) - len(text) if "{" in text else 0)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return 0  # upstream, and the limit of levels, refuse it
    return _schema_states(value)


def regex_states(pattern: str) -> int:
    """The characters and classes of a regular expression, as often as it repeats them.

    In any dialect: what cannot be read counts once.
    """
    if len(pattern) > MOST_STATES or "{" not in pattern:
        return len(pattern)  # at most; what it is would take as long to find
    return _unrolled(pattern)


def _unrolled(pattern: str) -> int:
    groups, last, i = [0], 0, 0
    while i < len(pattern):
        char, repeated = pattern[i], None
        if char == "\\":
            last = _UNICODE_CLASS if pattern[i + 1 : i + 2] in ("p", "P") else 1
            name = _PROPERTY.match(pattern, i + 2)
            i = name.end() if name and last > 1 else i + 2
            groups[-1] += last
            continue
        if char == "[":
            whole = _CLASS.match(pattern, i)
            i = whole.end() - 1 if whole else i
        elif char == "(":
            groups.append(0)
            i, last = i + 1, 0
            continue
        elif char == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
            i += 1
            continue
        elif char == "{":
            repeated = _QUANTIFIER.match(pattern, i)
        if repeated:
            times = max(_count(repeated[1]), _count(repeated[3]), 1)
            groups[-1] += last * (times - 1)
            last *= times
            i = repeated.end()
        else:
            if char not in "*+?|":
                last = 1
                groups[-1] += 1
            i += 1
    return sum(groups)


def _count(digits: str) -> int:
    return int(digits or 0) if len(digits) < 10 else 10**9


def _bound(schema: dict[str, Any], keys: tuple[str, ...]) -> int:
    """The largest of these keywords; 0 where there is none."""
    found = [schema.get(key) for key in keys]
    return max(
        (int(each) for each in found if isinstance(each, (int, float))), default=0
    )


def _schema_states(schema: object) -> int:
    """The largest of: what repetitions unroll to; the longest literal or name."""
    repeated, longest = 0, 0
    left: list[tuple[object, int]] = [(schema, 1)]
    while left:
        each, times = left.pop()
        if isinstance(each, str):
            longest = max(longest, len(each))
        elif isinstance(each, list):
            left.extend((one, times) for one in each)
        elif isinstance(each, dict):
            pattern = each.get("pattern")
            if isinstance(pattern, str):
                repeated += times * regex_states(pattern)
            repeated += times * _bound(each, _LENGTHS)
            if count := _bound(each, _COUNTS):
                times *= count
                repeated += times
            for key, value in each.items():
                longest = max(longest, len(key))
                if key == "patternProperties" and isinstance(value, dict):
                    repeated += times * sum(map(regex_states, value))
                if not isinstance(value, str) or key not in _PROSE:
                    left.append((value, times))
    return max(repeated, longest)


def _patterns(schema: object) -> list[str]:
    """The regular expressions of a JSON schema."""
    found, left = [], [schema]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            if isinstance(each.get("pattern"), str):
                found.append(each["pattern"])
            if isinstance(each.get("patternProperties"), dict):
                found.extend(each["patternProperties"])
            left.extend(each.values())
        elif isinstance(each, list):
            left.extend(each)
    return found


def _after_others() -> None:
    """Lets every other thread of this machine go first, and those it starts, too."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


_checkers = ThreadPoolExecutor(2, "grammar-check", initializer=_after_others)


async def check_beside(processor: "InputProcessor", params: Any) -> None:
    """Runs upstream's check of a large constraint, which blocks, in a thread.

    Upstream runs it once more in the event loop, where `was_checked` tells it to skip.

    Raises:
        ValueError: the client gets status 400.
    """
    constraint = getattr(params, "structured_outputs", None)
    if constraint is None or was_checked(constraint):
        return
    if sum(_characters(getattr(constraint, name) or "") for name in _FIELDS) <= SMALL:
        return
    await asyncio.get_running_loop().run_in_executor(
        _checkers,
        lambda: params.verify(
            processor.model_config,
            processor.speculative_config,
            processor.structured_outputs_config,
            processor.tokenizer,
        ),
    )
    constraint.was_checked = True


def was_checked(constraint: Any) -> bool:
    """Whether `check_beside` has checked it."""
    return bool(getattr(constraint, "was_checked", False))


class GrammarExecutor:
    """Compiles grammars of requests, and gives up those that take too long.

    As upstream's executor, of which only `submit` is used. What is short has threads of
    its own, so that it need not wait for what is not.
    """

    def __init__(self, manager: Any, max_workers: int) -> None:
        """`manager` is upstream's `StructuredOutputManager`."""
        self._manager = manager
        self._pools = {
            name: ThreadPoolExecutor(max_workers, f"grammar-{name}")
            for name in ("short", "long")
        }

    def submit(self, create: Any, request: Any) -> "Future[Any]":
        """The grammar that `create(request)` makes."""
        kind, spec = request.structured_output_request.structured_output_key
        name = {"CHOICE": "grammar"}.get(kind.name, kind.name.lower())
        short = len(spec) <= SMALL and _states(name, spec) <= FEW_STATES
        pool = self._pools["short" if short else "long"]
        return pool.submit(self._in_time, create, request, kind, spec)

    def _in_time(self, create: Any, request: Any, kind: Any, spec: str) -> Any:
        """Creates it in a thread of its own, before which all others go.

        A compiler cannot be stopped: its thread ends when it has ended. What it may
        take is bounded by `check_constraint`, and by a trial where that does not do.
        """
        limits = {"REGEX": (MOST_REGEX_SECONDS, REGEX_SECONDS)}
        seconds, name = limits.get(kind.name, (MOST_SECONDS, SECONDS))
        late = ValueError(f"it took longer than {seconds} s to compile ({name})")
        if seconds > 0:
            _try(self._manager.backend, kind, spec, seconds, late)
        grammar: Future[Any] = Future()

        def compile_it() -> None:
            _after_others()
            try:
                grammar.set_result(create(request))
            except BaseException as error:
                grammar.set_exception(error)

        threading.Thread(target=compile_it, name="grammar", daemon=True).start()
        try:
            return grammar.result(seconds if seconds > 0 else None)
        except FutureTimeoutError:
            if grammar.done():
                raise
            raise late from None


def _try(backend: Any, kind: Any, spec: str, seconds: int, late: ValueError) -> None:
    """Makes the automata of outlines in a process, which can be stopped.

    Raises:
        ValueError: `late`.
    """
    if not type(backend).__module__.endswith(".backend_outlines"):
        return
    if kind.name == "REGEX":
        texts = [spec]
    elif kind.name == "JSON":
        texts = _patterns(json.loads(spec))
    else:
        return
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-c", _TRIAL],
            input=json.dumps(texts).encode(),
            capture_output=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise late from None
    if tried.returncode < 0 or b"MemoryError" in tried.stderr:
        raise late
