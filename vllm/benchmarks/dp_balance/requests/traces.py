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


# Every policy with every seed asks; a pipe answers once.
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
    chunk_size = 16
    notes: list[str] = []
    if text.startswith("{"):
        rows, chunk_size, notes = _json_rows(path, text, options)
    else:
        rows = [*_csv_rows(path, text, options)]
    served = [row for row in rows if row.output_len]
    if failed := len(rows) - len(served):
        notes.append(f"left out {failed} of {len(rows)} requests, which have no answer")
    if not served:
        raise UsageError(f"{path}: holds no request{' with an answer' * bool(rows)}.")
    kept = _window(path, served, options)
    for note in notes:
        print(f"note: {path}: {note}.", file=sys.stderr)
    return Trace(kept, options.chunk_hash_size or chunk_size)


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
    if not lasts <= LONGEST:
        raise UsageError(
            f"{path}: its times are {lasts:.3g} s apart; give the unit of its times "
            "with --timed-trace-sec-multiplier."
        )
    kept = [
        row._replace(time=row.time - first - options.start)
        for row in rows
        if row.time is not None
        and options.start <= row.time - first < options.start + options.duration
    ]
    if not kept:
        raise UsageError(
            f"{path}: no request in the window of {window}; the trace lasts "
            f"{lasts:.0f} s."
        )
    return sorted(kept, key=lambda row: row.time or 0.0)


def _row(where: str, prompt: Any, output: Any) -> TraceRow:
    """The row; that of a request that failed has no output tokens."""
    for name, tokens, least in (("prompt", prompt, 1), ("output", output, 0)):
        if type(tokens) is not int or not least <= tokens <= MOST_TOKENS:
            raise UsageError(
                f"{where}: {name} tokens are {tokens!r:.40}; give a whole number from "
                f"{least} to {MOST_TOKENS}."
            )
    return TraceRow(prompt, output)


def _csv_rows(path: Path, text: str, options: TimedTrace) -> Iterator[TraceRow]:
    labels = [
        *(options.label_timestamp, options.label_input_length),
        options.label_output_length,
    ]
    head = text.partition("\n")[0]
    try:
        dialect = csv.Sniffer().sniff(head, ",;\t")
        reader = csv.DictReader(io.StringIO(text, newline=""), dialect=dialect)
        names = reader.fieldnames or ()
    except csv.Error:
        names = ()
    columns = [each if each in names else AZURE.get(each, each) for each in labels]
    if not {*columns} <= {*names}:
        raise UsageError(f"{path} line 1: is {head!r:.60}; {EXPECTED}.")
    for item in reader:
        where = f"{path} line {reader.line_num}"
        texts = [item[column] or "" for column in columns]
        try:
            time = _seconds(texts[0], options.sec_multiplier or 1.0)
            # Tables of numbers are often written with ".0" by pandas.
            prompt, output = (int(each.removesuffix(".0")) for each in texts[1:])
        except ValueError:
            raise UsageError(
                f"{where}: {', '.join(columns)} are {texts!r:.200}; expected a date or "
                "seconds, and two whole numbers."
            ) from None
        yield _row(where, prompt, output)._replace(time=time)


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


def _json_rows(
    path: Path, text: str, options: TimedTrace
) -> tuple[list[TraceRow], int, list[str]]:
    """The rows of JSON lines, the tokens per hash id, and what was assumed."""
    rows: list[TraceRow] = []
    sizes = set()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: is no JSON ({error}); {EXPECTED}.") from None
        if isinstance(item, dict) and "requests" in item:
            size, turns = session_turns(where, item)
            sizes.add(size)
            for prompt, output, think, ids in turns:
                row = _row(where, prompt, output)
                rows.append(row._replace(hash_ids=ids, think=think))
        else:
            sizes.add(512)
            rows.append(_json_row(where, item, options))
    if len(sizes) > 1:
        raise UsageError(
            f"{path}: a hash id is of one of {sorted(sizes)} tokens; give all the same."
        )
    (size,) = sizes
    notes = []
    is_told = None not in (options.sec_multiplier, options.chunk_hash_size)
    if not is_told and any(row.time is not None for row in rows):
        notes.append(
            "read as Mooncake's, whose times are milliseconds (multiples of 3 s are "
            "spread over these at random) and whose hash ids stand for 512 tokens; "
            "--timed-trace-sec-multiplier and -chunk-hash-size say otherwise"
        )
    return _spread(rows), size, notes


def _json_row(where: str, item: Any, options: TimedTrace) -> TraceRow:
    names = options.label_input_length, options.label_output_length
    if not isinstance(item, Mapping) or not {*names} <= {*item}:
        has = ", ".join(item) if isinstance(item, Mapping) else f"{item!r}"
        raise UsageError(f"{where}: has {has:.60} and no {names[0]}; {EXPECTED}.")
    row = _row(where, *(item[name] for name in names))
    hash_ids = item.get(options.label_hash_ids, [])
    if not isinstance(hash_ids, list) or not all(isinstance(i, int) for i in hash_ids):
        raise UsageError(
            f"{where}: {options.label_hash_ids} is not a list of whole numbers."
        )
    row = row._replace(hash_ids=tuple(hash_ids))
    if (stamp := item.get(options.label_timestamp)) is None:
        return row
    try:
        return row._replace(time=_seconds(str(stamp), options.sec_multiplier or 1e-3))
    except ValueError:
        raise UsageError(
            f"{where}: {options.label_timestamp} is {stamp!r:.40}; expected a number."
        ) from None


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
