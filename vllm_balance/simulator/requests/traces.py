# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Reads traces of real traffic: times, lengths and shared prefixes of requests.

Three formats: JSON lines as Mooncake's, CSV with a head, and sessions of agents. For
others docs/simulate.md shows how to convert them.
"""

import contextlib
import csv
import functools
import itertools
import json
import math
import random
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import UsageError
from ..arguments import MOST_TOKENS
from ..files import read_lines
from .sessions import session_turns


class TraceRow(NamedTuple):
    """One request of a trace."""

    prompt_len: int
    """Tokens."""
    output_len: int
    """Tokens."""
    time: float | None = None
    """Seconds; None if the file has no times."""
    hash_ids: Iterable[int] = ()
    """Ids of the prompt's chunks: prompts share the chunks of equal leading ids."""
    think: float | None = None
    """Seconds after the answer to the row before, in the same session; None if the row
    begins a session."""


class Trace(NamedTuple):
    """A trace in the order of its times, which count from the window's begin."""

    rows: Sequence[TraceRow]
    chunk_size: int
    """Tokens that a hash id stands for."""

    @property
    def is_timed(self) -> bool:
        """Whether every request has a time."""
        return all(row.time is not None for row in self.rows)


@dataclass(frozen=True)
class TimedTrace:
    """Named as the options of vLLM's `timed_trace` dataset.

    An option that is None has the format's default.
    """

    chunk_hash_size: int | None = None
    """Tokens per hash id."""
    sec_multiplier: float | None = None
    """Seconds per unit of the timestamps."""
    label_timestamp: str = "timestamp"
    label_input_length: str = "input_length"
    label_output_length: str = "output_length"
    label_hash_ids: str = "hash_ids"
    start: float = 0.0
    """Seconds into the trace at which the window begins."""
    duration: float = float("inf")
    """Seconds that the window lasts."""


STEPS = 60.0, 3.0, 1.0
"""Steps in seconds to which times are often rounded down; Mooncake's are 3 s."""
STEP_TOLERANCE = 0.005
"""Tolerance of such times in seconds: a third of Mooncake's are off by 1 to 3 ms."""
SAMPLES = 100
"""Places of a file that are read to see whether its times are in order."""
LONGEST = 1e9
"""Longest trace in seconds: a float counts more with too little precision."""
LATEST = 1e11
"""Latest time in seconds since 1970 (year 5138): more are of another unit."""
AZURE = {
    "timestamp": "TIMESTAMP",
    "input_length": "ContextTokens",
    "output_length": "GeneratedTokens",
}
"""Column names of Azure's LLM inference traces, by ours."""
EXPECTED = (
    'give lines like {"timestamp": 27000, "input_length": 6955, "output_length": 52, '
    '"hash_ids": [46, 47]} (milliseconds and tokens; the lengths alone will do), '
    "sessions of kv-cache-tester, or CSV with a head; --timed-trace-label-… says other "
    "names, and docs/simulate.md how to convert what is different"
)
ASSUMED_OF_CSV = (
    "its times, unless they are dates, are read as seconds; "
    "--timed-trace-sec-multiplier says otherwise"
)
ASSUMED = (
    "read as Mooncake's, whose times are milliseconds and whose hash ids stand for "
    "512 tokens; --timed-trace-sec-multiplier and -chunk-hash-size say otherwise"
)


@functools.lru_cache(maxsize=1)
def read_trace(path: Path, options: TimedTrace | None = None) -> Trace:
    """Reads a trace of any of the formats.

    Standard error gets what was left out, and what was assumed.

    Args:
        path: the file.
        options: how to read it, and which window to keep; by default all.

    Raises:
        UsageError: the file cannot be read, has a bad line, which is named, or
            nothing in the window.
    """
    options = options or TimedTrace()
    head = next(_text_lines(path), "")
    is_json = head.startswith("{")
    read = functools.partial(_json_lines if is_json else _csv_lines, path)
    times = _spread(path, _times(path, read, options, is_json))
    rows, chunk_size, failed = [], 512 if is_json else 16, 0
    begin = _begin_of_window(path, times, options)
    for time, (where, item) in zip(times, read(_text_lines(path)), strict=False):
        since = None if begin is None else time - begin
        if since is not None and not 0 <= since < options.duration:
            continue
        if isinstance(item.get("requests"), list):
            # The last session's size counts: all have the same.
            chunk_size, turns = session_turns(where, item)
            for prompt, output, think, ids in turns:
                row = _row(where, prompt, output)
                rows.append(row._replace(hash_ids=ids, think=think))
        else:
            row = _traced(where, item, options, is_json)._replace(time=since)
            failed += not row.output_len
            rows.append(row)
    if not rows and begin is not None:
        raise UsageError(
            f"{path}: no request in the window of {_name_of_window(options)}; the "
            f"trace lasts {max(times) - min(times):.0f} s."
        )
    if failed == len(rows):
        none = f"holds no request{' with an answer' * bool(rows)}"
        line = head.rstrip("\r\n")
        raise UsageError(f"{path}: {none}; line 1 is {line!r:.60}; {EXPECTED}.")
    if begin is not None and options.sec_multiplier is None and not is_json:
        print(f"note: {path}: {ASSUMED_OF_CSV}.", file=sys.stderr)
    has_units = None not in (options.sec_multiplier, options.chunk_hash_size)
    if begin is not None and is_json and not has_units:
        print(f"note: {path}: {ASSUMED}.", file=sys.stderr)
    if failed:
        problem = f"left out {failed} of {len(rows)} requests, which have no answer"
        print(f"note: {path}: {problem}.", file=sys.stderr)
    served = [row for row in rows if row.output_len]
    if begin is not None:
        served.sort(key=lambda row: row.time or 0.0)
    return Trace(served, options.chunk_hash_size or chunk_size)


def _text_lines(path: Path) -> Iterator[str]:
    """The lines of a file, without empty ones before the first."""
    lines = itertools.dropwhile(lambda line: not line.strip(), read_lines(path))
    yield next(lines, "").lstrip()
    yield from lines


def _sample(path: Path) -> Iterator[str]:
    """The first line of a file, some of those between, and the last."""
    yield next(_text_lines(path), "")
    size = path.stat().st_size
    with path.open("rb") as file:
        for number in range(1, SAMPLES):
            file.seek(size * number // SAMPLES)
            file.readline()  # the rest of a line
            yield file.readline().decode(errors="replace")
        file.seek(max(0, size - 65_536))
        yield from (line.decode(errors="replace") for line in file.readlines()[-1:])


Lines = Iterator[tuple[str, Mapping[str, Any]]]
"""File and line of a request, and its fields by name."""
Read = Callable[[Iterator[str]], Lines]
"""A reader of the lines of one format."""


def _json_lines(path: Path, lines: Iterator[str]) -> Lines:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path} line {number}"
            try:
                item = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{where}: no JSON ({error}); {EXPECTED}.") from None
            if not isinstance(item, dict):
                raise UsageError(f"{where}: is {item!r:.40}; {EXPECTED}.")
            if "delay" in item and "session_id" in item and "timestamp" not in item:
                raise UsageError(
                    f"{where}: has a delay and no timestamp, as later turns of AIPerf "
                    "have; give each turn the time at which it was sent, or sessions "
                    "as those of kv-cache-tester."
                )
            yield where, item


def _csv_lines(path: Path, lines: Iterator[str]) -> Lines:
    head = next(lines, "")
    try:
        dialect = csv.Sniffer().sniff(head, ",;\t")
    except csv.Error:  # the file is no CSV
        return
    reader = csv.DictReader(itertools.chain([head], lines), dialect=dialect)
    try:
        for item in reader:
            yield f"{path} line {reader.line_num}", item
    except csv.Error as error:
        raise UsageError(f"{path} line {reader.line_num + 1}: {error}.") from None


def _numbers(
    where: str, item: Mapping[str, Any], options: TimedTrace, is_json: bool
) -> Iterator[Any]:
    """The fields of a line with prompt tokens, output tokens and time."""
    labels = (
        options.label_input_length,
        options.label_output_length,
        options.label_timestamp,
    )
    # The lines of a CSV have all three.
    needed = labels[: 2 if is_json else 3]
    names = [text if text in item else AZURE.get(text, text) for text in labels]
    for label, name in zip(needed, names, strict=False):
        if name not in item:
            keys = ", ".join(map(str, item))
            raise UsageError(f"{where}: has {keys:.60} and no {label}; {EXPECTED}.")
    return map(item.get, names)


def _traced(
    where: str, item: Mapping[str, Any], options: TimedTrace, is_json: bool
) -> TraceRow:
    """The row of a line, without its time."""
    prompt, output, _ = _numbers(where, item, options, is_json)
    hash_ids = item.get(options.label_hash_ids, [])
    if not isinstance(hash_ids, list) or not all(isinstance(i, int) for i in hash_ids):
        raise UsageError(
            f"{where}: {options.label_hash_ids} is not a list of whole numbers."
        )
    return _row(where, prompt, output)._replace(hash_ids=tuple(hash_ids))


def _row(where: str, prompt: Any, output: Any) -> TraceRow:
    """The row of a request; one that failed has no output tokens."""
    lengths = []
    for name, tokens, low in (("prompt", prompt, 1), ("output", output, 0)):
        # Tables of numbers are often written with ".0" by pandas.
        text = str(tokens).removesuffix(".0")
        if not re.fullmatch(r"\d{1,18}", text) or not low <= int(text) <= MOST_TOKENS:
            raise UsageError(
                f"{where}: {name} tokens are {tokens!s:.40}; give a whole number from "
                f"{low} to {MOST_TOKENS}."
            )
        lengths.append(int(text))
    prompt_len, output_len = lengths
    return TraceRow(prompt_len, output_len)


def _seconds(text: str, unit: float) -> float:
    """Seconds of a number in `unit`, or of a date, in UTC unless it has a zone.

    Raises:
        ValueError: it is neither.
    """
    try:
        number = float(text) * unit
    except ValueError:
        # Python 3.10 reads only six decimals and no Z.
        text = re.sub(r"\.(\d+)", lambda match: f".{match[1]:0<6.6}", text.strip())
        date = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _times(
    path: Path, read: Read, options: TimedTrace, is_json: bool
) -> Sequence[float]:
    """The time of each line in seconds; nan without one.

    If the times are in order, those behind the window are left out but for the last.
    """

    def seconds_of(lines: Iterator[str]) -> Iterator[float]:
        unit = options.sec_multiplier or (1e-3 if is_json else 1.0)
        for where, item in read(lines):
            stamp = None
            if not isinstance(item.get("requests"), list):
                _, _, stamp = _numbers(where, item, options, is_json)
            try:
                yield math.nan if stamp is None else _seconds(str(stamp), unit)
            except ValueError:
                raise UsageError(
                    f"{where}: {options.label_timestamp} is {stamp!r:.40}; expected a "
                    "number or a date."
                ) from None

    sampled: list[float] = []
    if options.duration < math.inf:
        with contextlib.suppress(UsageError):  # a sample may begin within a line
            sampled = list(seconds_of(_sample(path)))
    is_in_order = len(sampled) > 1 and sampled == sorted(sampled)
    times = array("d")
    for time in seconds_of(_text_lines(path)):
        is_in_order &= not times or times[-1] <= time
        times.append(time)
        # By the longest step more, because times may be spread over their step.
        if is_in_order and (
            time - times[0] > options.start + options.duration + max(STEPS)
        ):
            times.append(sampled[-1])
            break
    return times


def _spread(path: Path, times: Sequence[float]) -> Sequence[float]:
    """The times; if they are rounded to a step, each spread over it at random.

    They are not if one is no multiple of the step, or if no two are equal.
    """
    for step in STEPS:
        offsets = (abs(math.remainder(time, step)) for time in times)
        if all(value <= STEP_TOLERANCE for value in offsets):
            break
    else:
        return times
    steps = array("d", (round(time / step) for time in times))
    if len({*steps}) < 2 or len({*times}) == len(times):
        return times
    print(
        f"note: {path}: its times are multiples of {step:g} s; requests are "
        "spread over these at random.",
        file=sys.stderr,
    )
    draw = random.Random(0)
    return array("d", (step * (value + draw.random()) for value in steps))


def _name_of_window(options: TimedTrace) -> str:
    return f"--timed-trace-start {options.start:g} and -duration {options.duration:g}"


def _begin_of_window(
    path: Path, times: Sequence[float], options: TimedTrace
) -> float | None:
    """The time at which the window begins, or None if the file has no times."""
    timed = len(times) - sum(map(math.isnan, times))
    if not timed:
        if (options.start, options.duration) != (0.0, math.inf):
            window = _name_of_window(options)
            raise UsageError(f"{window}: {path} has no times; leave them out.")
        return None
    if timed < len(times):
        raise UsageError(
            f"{path}: {timed} of {len(times)} requests have a time; give one to all, "
            "or to none."
        )
    first, length = min(times), max(times) - min(times)
    if not (length <= LONGEST and max(map(abs, times)) <= LATEST):
        raise UsageError(
            f"{path}: its times are {length:.3g} s apart, from {first:.3g} s on; give "
            "their unit with --timed-trace-sec-multiplier (of milliseconds 0.001)."
        )
    return first + options.start
