# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Reads traces of real traffic: when requests came, their lengths, what they share.

Three formats: JSON lines as Mooncake's, CSV with a head, and sessions of agents. What
is of another is converted by whoever has it; docs/simulate.md shows how.
"""

import csv
import functools
import io
import json
import math
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from ..arguments import MOST_TOKENS
from ..errors import UsageError
from ..files import read_text
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
    """Of the prompt's chunks: prompts that begin with equal ones share them."""
    think: float | None = None
    """Seconds after the answer to the row before, which is of the same session; None if
    it begins one."""


class Trace(NamedTuple):
    """A trace in the order of its times, which start at 0."""

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

    An option is None where the format says it.
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


MOONCAKE_SECONDS = 3.0
"""Mooncake's times are multiples of this; requests of one time are spread over it."""
LONGEST = 1e9
"""Seconds that a trace may last: in longer ones the clock loses the steps."""
LATEST = 1e11
"""Seconds since 1970, in the year 5138: who has more counts something shorter."""
AZURE = {
    "timestamp": "TIMESTAMP",
    "input_length": "ContextTokens",
    "output_length": "GeneratedTokens",
}
"""Further names of columns: those of Azure's LLM inference traces."""
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
    "read as Mooncake's, whose times are milliseconds (multiples of 3 s are spread "
    "over these at random) and whose hash ids stand for 512 tokens; "
    "--timed-trace-sec-multiplier and -chunk-hash-size say otherwise"
)


@functools.lru_cache(maxsize=1)
def read_trace(path: Path, options: TimedTrace | None = None) -> Trace:
    """Reads a trace of any of the formats.

    What is left out of it, and what was assumed about it, is said on standard error.

    Args:
        path: the file.
        options: how to read it, and which window to keep; by default all.

    Raises:
        UsageError: the file cannot be read, has a bad line, which is named, or
            nothing in the window.
    """
    text, options = read_text(path).lstrip(), options or TimedTrace()
    is_json = text.startswith("{")
    chunk_size = 512 if is_json else 16
    rows: list[TraceRow] = []
    for where, item in _json_lines(path, text) if is_json else _csv_lines(path, text):
        if isinstance(item.get("requests"), list):
            # Of the last one: nobody mixes sessions of several sizes.
            chunk_size, turns = session_turns(where, item)
            for prompt, output, think, ids in turns:
                row = _row(where, prompt, output)
                rows.append(row._replace(hash_ids=ids, think=think))
        else:
            rows.append(_traced(where, item, options, is_json))
    if is_json:
        is_told = None not in (options.sec_multiplier, options.chunk_hash_size)
        if not is_told and any(row.time is not None for row in rows):
            print(f"note: {path}: {ASSUMED}.", file=sys.stderr)
        rows = _spread(rows)
    elif options.sec_multiplier is None and any(row.time is not None for row in rows):
        print(f"note: {path}: {ASSUMED_OF_CSV}.", file=sys.stderr)
    served = [row for row in rows if row.output_len]
    if not served:
        head = text.partition("\n")[0]
        none = f"holds no request{' with an answer' * bool(rows)}"
        raise UsageError(f"{path}: {none}; line 1 is {head!r:.60}; {EXPECTED}.")
    if failed := len(rows) - len(served):
        said = f"left out {failed} of {len(rows)} requests, which have no answer"
        print(f"note: {path}: {said}.", file=sys.stderr)
    kept = _window(path, served, options)
    return Trace(kept, options.chunk_hash_size or chunk_size)


Lines = Iterator[tuple[str, Mapping[str, Any]]]
"""Where a request is said, and what is said of it by name."""


def _json_lines(path: Path, text: str) -> Lines:
    for number, line in enumerate(text.split("\n"), start=1):
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


def _csv_lines(path: Path, text: str) -> Lines:
    try:
        dialect = csv.Sniffer().sniff(text.partition("\n")[0], ",;\t")
    except csv.Error:  # of what is no such file
        return
    reader = csv.DictReader(io.StringIO(text, newline=""), dialect=dialect)
    try:
        for item in reader:
            yield f"{path} line {reader.line_num}", item
    except csv.Error as error:
        raise UsageError(f"{path} line {reader.line_num + 1}: {error}.") from None


def _traced(
    where: str, item: Mapping[str, Any], options: TimedTrace, is_json: bool
) -> TraceRow:
    """The row of a line."""
    labels = (
        options.label_input_length,
        options.label_output_length,
        options.label_timestamp,
    )
    # The lines of a CSV have all three.
    needed = labels[: 2 if is_json else 3]
    names = [each if each in item else AZURE.get(each, each) for each in labels]
    for label, name in zip(needed, names, strict=False):
        if name not in item:
            has = ", ".join(map(str, item))
            raise UsageError(f"{where}: has {has:.60} and no {label}; {EXPECTED}.")
    prompt, output, stamp = map(item.get, names)
    row = _row(where, prompt, output)
    hash_ids = item.get(options.label_hash_ids, [])
    if not isinstance(hash_ids, list) or not all(isinstance(i, int) for i in hash_ids):
        raise UsageError(
            f"{where}: {options.label_hash_ids} is not a list of whole numbers."
        )
    row = row._replace(hash_ids=tuple(hash_ids))
    if stamp is None:
        return row
    unit = options.sec_multiplier or (1e-3 if is_json else 1.0)
    try:
        return row._replace(time=_seconds(str(stamp), unit))
    except ValueError:
        raise UsageError(
            f"{where}: {options.label_timestamp} is {stamp!r:.40}; expected a number "
            "or a date."
        ) from None


def _row(where: str, prompt: Any, output: Any) -> TraceRow:
    """The row; that of a request that failed has no output tokens."""
    found = []
    for name, tokens, least in (("prompt", prompt, 1), ("output", output, 0)):
        # Tables of numbers are often written with ".0" by pandas.
        text = str(tokens).removesuffix(".0")
        if not re.fullmatch(r"\d{1,18}", text) or not least <= int(text) <= MOST_TOKENS:
            raise UsageError(
                f"{where}: {name} tokens are {tokens!s:.40}; give a whole number from "
                f"{least} to {MOST_TOKENS}."
            )
        found.append(int(text))
    prompt_len, output_len = found
    return TraceRow(prompt_len, output_len)


def _seconds(text: str, unit: float) -> float:
    """Of a number in that unit, or of a date, in UTC unless it says another zone.

    Raises:
        ValueError: it is neither.
    """
    try:
        number = float(text) * unit
    except ValueError:
        # Before Python 3.11 only six decimals and no Z.
        text = re.sub(r"\.(\d+)", lambda found: f".{found[1]:0<6.6}", text.strip())
        date = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _window(
    path: Path, rows: Sequence[TraceRow], options: TimedTrace
) -> Sequence[TraceRow]:
    times = [row.time for row in rows if row.time is not None]
    window = f"--timed-trace-start {options.start:g} and -duration {options.duration:g}"
    if not times:
        if (options.start, options.duration) != (0.0, math.inf):
            raise UsageError(f"{window}: {path} has no times; leave them out.")
        return rows
    if len(times) < len(rows):
        raise UsageError(
            f"{path}: {len(times)} of {len(rows)} requests have a time; give one to "
            "all, or to none."
        )
    first, lasts = min(times), max(times) - min(times)
    if not (lasts <= LONGEST and max(map(abs, times)) <= LATEST):
        raise UsageError(
            f"{path}: its times are {lasts:.3g} s apart, from {first:.3g} s on; give "
            "their unit with --timed-trace-sec-multiplier (of milliseconds 0.001)."
        )
    since = (
        row._replace(time=(row.time or 0.0) - first - options.start) for row in rows
    )
    kept = [row for row in since if 0 <= (row.time or 0.0) < options.duration]
    if not kept:
        raise UsageError(
            f"{path}: no request in the window of {window}; the trace lasts "
            f"{lasts:.0f} s."
        )
    return sorted(kept, key=lambda row: row.time or 0.0)


def _spread(rows: list[TraceRow]) -> list[TraceRow]:
    """Requests of the same multiple of 3 s are spread over these, at random.

    Times that are exact show it: they are no multiples, or there is one of each.
    """
    times = [row.time for row in rows if row.time is not None]
    if (
        len(times) < len(rows)
        or not 1 < len({*times}) < len(times)
        or any(abs(math.remainder(time, MOONCAKE_SECONDS)) > 1e-6 for time in times)
    ):
        return rows
    spread = random.Random(0)
    return [
        row._replace(time=time + MOONCAKE_SECONDS * spread.random())
        for row, time in zip(rows, times, strict=True)
    ]
