# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Reads traces of real traffic: when requests came, their lengths, what they share.

Formats are told apart by their names of columns: the CSV of Azure's LLM inference
traces and of BurstGPT, the JSON lines of Mooncake and of Qwen-Bailian (and what
resembles them), sessions of agents, a result that `vllm bench serve` saved, and its
custom dataset.
"""

import csv
import functools
import io
import json
import math
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from ..arguments import MOST_TOKENS
from ..errors import UsageError
from ..files import read_text
from .sessions import session_turns

CountTokens = Callable[[str], int]


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

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def read_trace(
    path: Path,
    count_tokens: CountTokens | None = None,
    options: TimedTrace | None = None,
) -> Trace:
    """Reads a trace of any of the formats.

    What is left out of it, and what was assumed about it, is said on standard error
    when it is first read.

    Args:
        path: the file.
        count_tokens: counts the tokens of a prompt that is text.
        options: how to read JSON lines, and which window to keep; by default all.

    Raises:
        UsageError: the file cannot be read, has a bad line, which is named, or
            nothing in the window.
    """
    return _parse(path, read_text(path), count_tokens, options or TimedTrace())


@functools.lru_cache(maxsize=1)  # every policy with every seed asks
def _parse(
    path: Path, text: str, count_tokens: CountTokens | None, options: TimedTrace
) -> Trace:
    chunk_size = 16
    notes: list[str] = []
    head = re.split("[\r\n]", text.lstrip(), maxsplit=1)[0]
    separator = max(",;\t", key=head.count)
    names = [name.strip(' "') for name in head.split(separator)]
    columns = next((each for each in (_AZURE, _BURSTGPT) if {*each} <= {*names}), None)
    if columns is not None:
        places = [names.index(column) for column in columns]
        rows = _csv_rows(path, text.lstrip(), separator, columns, places, options)
    else:
        rows, chunk_size, notes = _json_rows(path, text, count_tokens, options)
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


_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?)([.,]\d+)?"
    r" ?(?:(Z|UTC)|([+-]\d\d):?(\d\d)?)?",
    re.ASCII | re.I,
)


def _date(text: str) -> tuple[float, bool]:
    """Seconds of a date in UTC, and whether it names its zone.

    Raises:
        ValueError: it is none. `datetime.fromisoformat` takes no seven decimals before
            Python 3.11.
    """
    match = _DATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    whole, fraction, utc, hours, minutes = match.groups()
    moment = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc)
    seconds = moment.timestamp() + float(f"0.{(fraction or '.0')[1:]}")
    if hours is not None:
        sign = -1 if hours.startswith("-") else 1
        seconds -= 3600 * int(hours) + 60 * sign * int(minutes or 0)
    return seconds, utc is not None or hours is not None


def _number(text: str) -> float:
    """A finite number.

    Raises:
        ValueError: it is none.
    """
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _csv_rows(
    path: Path,
    text: str,
    separator: str,
    columns: tuple[str, str, str],
    places: Sequence[int],
    options: TimedTrace,
) -> list[TraceRow]:
    """The rows below the head, which has these columns at these places."""
    if columns is _AZURE and options.sec_multiplier is not None:
        raise UsageError(
            f"--timed-trace-sec-multiplier: the times of {path} are dates."
        )
    rows, zones = [], set()
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    try:
        next(reader)
        for item in filter(any, reader):
            where = f"{path} line {reader.line_num}"
            texts = [item[place] if place < len(item) else None for place in places]
            try:
                if columns is _AZURE:
                    time, has_zone = _date(texts[0] or "")
                    zones.add(has_zone)
                else:
                    time = _number(texts[0] or "") * (options.sec_multiplier or 1)
                # Tables of numbers are often written with ".0" by pandas.
                prompt, output = (
                    int((each or "").removesuffix(".0")) for each in texts[1:]
                )
            except ValueError:
                raise UsageError(
                    f"{where}: {', '.join(columns)} are {texts!r:.200}; expected a "
                    "time and two whole numbers."
                ) from None
            if len(zones) > 1:
                raise UsageError(
                    f"{where}: {columns[0]} is {texts[0]!r}, and only some rows name "
                    "their zone; give it to all, or to none."
                )
            rows.append(_row(where, prompt, output, time))
    except csv.Error as error:
        raise UsageError(f"{path} line {reader.line_num}: no CSV ({error}).") from None
    return rows


def _row(where: str, prompt: Any, output: Any, time: float | None = None) -> TraceRow:
    """The row; that of a request that failed has no output tokens."""
    low = 0 if output == 0 else 1
    # Booleans are integers, too, of another type.
    if not all(
        type(length) is int and low <= length <= MOST_TOKENS
        for length in (prompt, output)
    ):
        said = [f"{each!r:.40}" for each in (prompt, output)]
        raise UsageError(
            f"{where}: {said[0]} prompt tokens and {said[1]} output tokens; "
            f"both must be whole numbers of at least 1 and at most {MOST_TOKENS}."
        )
    return TraceRow(prompt, output, time)


def _json_rows(
    path: Path, text: str, count_tokens: CountTokens | None, options: TimedTrace
) -> tuple[list[TraceRow], int, list[str]]:
    """The rows of JSON lines, the tokens per hash id, and what was assumed."""
    rows: list[TraceRow] = []
    sizes, has_times, has_chats, has_hashes = set(), False, False, False
    for number, item in _objects(path, text):
        where = f"{path} line {number}"
        if "requests" in item:
            size, turns = session_turns(where, item)
            sizes.add(size)
            for prompt, output, think, ids in turns:
                row = _row(where, prompt, output)
                rows.append(row._replace(hash_ids=ids, think=think))
        elif "input_lens" in item or "total_input_tokens" in item:
            rows += _saved_result(where, item)
        elif options.label_timestamp in item:
            has_times, has_chats = True, has_chats or "chat_id" in item
            has_hashes |= options.label_hash_ids in item
            rows.append(_timed_row(where, item, options))
        elif "delay" in item:
            raise UsageError(
                f"{where}: has a delay and no {options.label_timestamp}: only sessions "
                f"wait for answers; give each line its {options.label_timestamp}."
            )
        else:
            prompt = _prompt_tokens(where, item, count_tokens)
            rows.append(_row(where, prompt, item.get("output_tokens")))
    if len(sizes) > 1:
        raise UsageError(
            f"{path}: block_size is one of {sorted(sizes)}; give all the same."
        )
    if has_hashes and not has_chats:  # Bailian numbers chats and counts seconds
        return _as_mooncake(rows, options)
    seconds = options.sec_multiplier or 1.0
    rows = [r if r.time is None else r._replace(time=r.time * seconds) for r in rows]
    is_guess = has_times and not has_chats and options.sec_multiplier is None
    notes = [
        "its times are read as seconds; --timed-trace-sec-multiplier says otherwise"
    ]
    return rows, next(iter(sizes), 16), notes * is_guess


def _as_mooncake(
    rows: Sequence[TraceRow], options: TimedTrace
) -> tuple[list[TraceRow], int, list[str]]:
    """With times in milliseconds, and hash ids for 512 tokens."""
    seconds = options.sec_multiplier or 1e-3
    rows = [r if r.time is None else r._replace(time=r.time * seconds) for r in rows]
    times = [row.time for row in rows if row.time is not None]
    notes = []
    if None in (options.sec_multiplier, options.chunk_hash_size):
        notes.append(
            "read as Mooncake's, whose times are milliseconds and whose hash ids stand "
            "for 512 tokens; --timed-trace-sec-multiplier and -chunk-hash-size say "
            "otherwise"
        )
    # Times that are exact show it: they are no multiples, or there is one of each.
    rounded = [round(time / MOONCAKE_SECONDS, 0) for time in times]
    if 1 < len({*rounded}) < len(times) == len(rows) and all(
        math.isclose(time, MOONCAKE_SECONDS * number, abs_tol=1e-6)
        for time, number in zip(times, rounded, strict=True)
    ):
        spread = random.Random(0)
        rows = [
            row._replace(time=(row.time or 0.0) + MOONCAKE_SECONDS * spread.random())
            for row in rows
        ]
        notes.append(
            f"its times are multiples of {MOONCAKE_SECONDS:g} s; the requests of each "
            "are spread over them at random"
        )
    return rows, 512, notes


# NaN and Infinity as texts, which no number may be: `vllm bench serve` saves options.
_DECODER = json.JSONDecoder(parse_constant=str)
_SPACE = re.compile(r"[ \t\r\n]*")


def _objects(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The objects of a file, on a line each or more, and the lines they begin in."""
    place, line, counted = 0, 1, 0
    while (place := _SPACE.match(text, place).end()) < len(text):  # type: ignore[union-attr]
        line, counted = line + text.count("\n", counted, place), place
        try:
            item, place = _DECODER.raw_decode(text, place)
            reason = f"a {type(item).__name__}"
        except (ValueError, RecursionError) as error:
            item, reason = None, str(error)
        if not isinstance(item, dict):
            raise UsageError(
                f"{path} line {line}: not a JSON object ({reason}); give a trace (CSV "
                "of Azure or BurstGPT, JSON lines of Mooncake, Bailian or sessions), a "
                "custom dataset of `vllm bench serve` (.jsonl) or its saved result."
            )
        yield line, item


def _timed_row(where: str, item: Mapping[str, object], options: TimedTrace) -> TraceRow:
    """The row, whose time is in the unit of the file."""
    row = _row(
        where,
        item.get(options.label_input_length),
        item.get(options.label_output_length),
    )
    hash_ids = item.get(options.label_hash_ids, [])
    if not isinstance(hash_ids, list) or not all(isinstance(i, int) for i in hash_ids):
        raise UsageError(
            f"{where}: {options.label_hash_ids} is not a list of whole numbers."
        )
    time = _time(where, options.label_timestamp, item[options.label_timestamp])
    return row._replace(time=time, hash_ids=tuple(hash_ids))


def _time(where: str, name: str, value: object) -> float:
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _number(str(value))
    except ValueError:
        pass
    raise UsageError(f"{where}: {name} is {value!r:.40}; expected a number.")


def _saved_result(where: str, item: Mapping[str, object]) -> Iterator[TraceRow]:
    names = ("input_lens", "output_lens", "start_times", "errors")
    prompts, outputs, times, errors = (item.get(name) for name in names)
    if not isinstance(prompts, list) or not isinstance(outputs, list):
        raise UsageError(
            f"{where}: a result without lengths of requests; save it with "
            "`vllm bench serve --save-result --save-detailed`."
        )
    starts = times if isinstance(times, list) else [None] * len(prompts)
    failed = errors if isinstance(errors, list) else [None] * len(prompts)
    if not len(prompts) == len(outputs) == len(starts) == len(failed):
        raise UsageError(
            f"{where}: {', '.join(names)} are of {len(prompts)}, {len(outputs)}, "
            f"{len(starts)} and {len(failed)} requests; save the result again."
        )
    for prompt, output, start, error in zip(
        prompts, outputs, starts, failed, strict=True
    ):
        time = None if times is None else _time(where, "a start time", start)
        yield _row(where, prompt, 0 if error else output, time)


def _prompt_tokens(
    where: str, item: Mapping[str, object], count_tokens: CountTokens | None
) -> object:
    if "prompt_tokens" in item:
        return item["prompt_tokens"]
    prompt = item.get("prompt")
    if isinstance(prompt, list) and all(type(each) is int for each in prompt):
        return len(prompt)
    if prompt is None:
        raise UsageError(
            f"{where}: has no prompt and no timestamp; for a trace with other names "
            "give the --timed-trace-label options."
        )
    if not isinstance(prompt, str):
        raise UsageError(
            f"{where}: prompt is {prompt!r:.40}; expected a text or a list of tokens."
        )
    if count_tokens is None:
        raise UsageError(
            f"{where}: the prompt is text; add a number prompt_tokens to each line, or "
            "have `simulate` or `recommend` count them (--tokenizer)."
        )
    return count_tokens(prompt.encode(errors="replace").decode())  # no half emoji
