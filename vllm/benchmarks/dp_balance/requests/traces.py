# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Reads traces of real traffic: when requests came, their lengths, what they share.

Formats are told apart by their first line: the CSV of Azure's LLM inference traces and
of BurstGPT, the JSON lines of Mooncake and of Qwen-Bailian (and what resembles them),
sessions of agents, a result that `vllm bench serve` saved, and its custom dataset.
"""

import csv
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError
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

    def __post_init__(self) -> None:
        if self.chunk_hash_size is not None and self.chunk_hash_size < 1:
            raise UsageError(
                f"--timed-trace-chunk-hash-size {self.chunk_hash_size}: give 1 or more."
            )
        if self.sec_multiplier is not None and not self.sec_multiplier > 0:
            raise UsageError(
                f"--timed-trace-sec-multiplier {self.sec_multiplier}: give a number "
                "above 0."
            )
        if not self.start >= 0 or not self.duration > 0:
            raise UsageError(
                f"--timed-trace-start {self.start} --timed-trace-duration "
                f"{self.duration}: a window begins at 0 or later and is not empty."
            )


MOONCAKE_SECONDS = 3.0
"""Mooncake's times are multiples of this; requests of one time are spread over it."""

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def read_trace(
    path: Path,
    count_tokens: CountTokens | None = None,
    options: TimedTrace | None = None,
) -> Trace:
    """Reads a trace of any of the formats.

    Args:
        path: the file.
        count_tokens: counts the tokens of a prompt that is text.
        options: how to read JSON lines, and which window to keep; by default all.

    Raises:
        UsageError: the file cannot be read, has a bad line, which is named, or
            nothing in the window.
    """
    options = options or TimedTrace()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}).") from None
    lines = text.splitlines()
    head = lines[0] if lines else ""
    chunk_size = 16
    if all(name in head for name in _AZURE):
        rows = _csv_rows(path, lines, _AZURE, _date)
    elif all(name in head for name in _BURSTGPT):
        rows = _csv_rows(path, lines, _BURSTGPT, float, failures=True)
    else:
        rows, chunk_size = _json_rows(path, lines, count_tokens, options)
    if not rows:
        raise UsageError(f"{path}: holds no request.")
    return Trace(_window(path, rows, options), options.chunk_hash_size or chunk_size)


def _window(
    path: Path, rows: Sequence[TraceRow], options: TimedTrace
) -> Sequence[TraceRow]:
    times = [row.time for row in rows if row.time is not None]
    if len(times) < len(rows):
        return rows
    first = min(times) + options.start
    kept = [
        row._replace(time=row.time - first)
        for row in rows
        if row.time is not None and 0 <= row.time - first < options.duration
    ]
    if not kept:
        raise UsageError(
            f"{path}: no request in the window of --timed-trace-start and "
            f"--timed-trace-duration; it lasts {max(times) - min(times):.0f} s."
        )
    return sorted(kept, key=lambda row: row.time or 0.0)


def _date(text: str) -> float:
    """Seconds of an Azure timestamp.

    It has up to seven decimals and may have a zone.
    """
    whole, _, rest = text.partition(".")
    moment = datetime.fromisoformat(whole.partition("+")[0])
    digits = rest.partition("+")[0]
    seconds = moment.replace(tzinfo=timezone.utc).timestamp()
    return seconds + (float(f"0.{digits}") if digits else 0.0)


def _csv_rows(
    path: Path,
    lines: Sequence[str],
    columns: tuple[str, str, str],
    seconds: Callable[[str], float],
    failures: bool = False,
) -> list[TraceRow]:
    rows = []
    for number, item in enumerate(csv.DictReader(lines), start=2):
        texts = [item.get(column) for column in columns]
        try:
            time = seconds(texts[0] or "")
            prompt, output = (int(text or "") for text in texts[1:])
        except ValueError:
            raise UsageError(
                f"{path} line {number}: {', '.join(columns)} are {texts}; expected a "
                "time and two whole numbers."
            ) from None
        if failures and output == 0:
            continue  # BurstGPT logs requests that failed with an empty response
        rows.append(_row(f"{path} line {number}", prompt, output, time))
    return rows


def _row(where: str, prompt: Any, output: Any, time: float | None = None) -> TraceRow:
    # Booleans are integers, too, of another type.
    if not all(type(length) is int and length >= 1 for length in (prompt, output)):
        raise UsageError(
            f"{where}: {prompt!r} prompt tokens and {output!r} output tokens; "
            "both must be whole numbers of at least 1."
        )
    return TraceRow(prompt, output, time)


def _json_rows(
    path: Path,
    lines: Sequence[str],
    count_tokens: CountTokens | None,
    options: TimedTrace,
) -> tuple[list[TraceRow], int]:
    """The rows of JSON lines, and the tokens per hash id."""
    rows: list[TraceRow] = []
    chunk_size = 16
    spread = random.Random(0)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        item = _object(where, line)
        if "requests" in item and "block_size" in item:
            chunk_size, turns = session_turns(where, item)
            for prompt, output, think, ids in turns:
                row = _row(where, prompt, output)
                rows.append(row._replace(hash_ids=ids, think=think))
        elif "input_lens" in item or "total_input_tokens" in item:
            rows += _saved_result(where, item)
        elif options.label_timestamp in item:
            # Bailian numbers chats and counts seconds; Mooncake milliseconds.
            mooncake = options.label_hash_ids in item and "chat_id" not in item
            if mooncake:
                chunk_size = 512
            seconds = options.sec_multiplier or (1e-3 if mooncake else 1.0)
            row = _timed_row(where, item, options, seconds)
            if mooncake and row.time is not None:
                late = MOONCAKE_SECONDS * spread.random()
                row = row._replace(time=row.time + late)
            rows.append(row)
        else:
            prompt = _prompt_tokens(where, item, count_tokens)
            rows.append(_row(where, prompt, item.get("output_tokens")))
    return rows, chunk_size


def _object(where: str, line: str) -> Mapping[str, object]:
    try:
        item = json.loads(line)
    except ValueError:
        item = None
    if not isinstance(item, dict):
        raise UsageError(
            f"{where}: not a JSON object; give a trace (CSV of Azure or BurstGPT, JSON "
            "lines of Mooncake, Bailian or sessions), the custom dataset of `vllm "
            "bench serve` (.jsonl) or its saved result."
        )
    return item


def _timed_row(
    where: str, item: Mapping[str, object], options: TimedTrace, seconds: float
) -> TraceRow:
    row = _row(
        where,
        item.get(options.label_input_length),
        item.get(options.label_output_length),
    )
    time, hash_ids = item[options.label_timestamp], item.get(options.label_hash_ids, [])
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        raise UsageError(
            f"{where}: {options.label_timestamp} is {time!r}; expected a number."
        )
    if not isinstance(hash_ids, list) or not all(isinstance(i, int) for i in hash_ids):
        raise UsageError(
            f"{where}: {options.label_hash_ids} is not a list of whole numbers."
        )
    return row._replace(time=time * seconds, hash_ids=tuple(hash_ids))


def _saved_result(where: str, item: Mapping[str, object]) -> Iterator[TraceRow]:
    prompts, outputs = item.get("input_lens"), item.get("output_lens")
    if not isinstance(prompts, list) or not isinstance(outputs, list):
        raise UsageError(
            f"{where}: a result without lengths of requests; save it with "
            "`vllm bench serve --save-result --save-detailed`."
        )
    times = item.get("start_times")
    starts: list[object] = times if isinstance(times, list) else [None] * len(prompts)
    for prompt, output, start in zip(prompts, outputs, starts, strict=False):
        time = float(start) if isinstance(start, (int, float)) else None
        yield _row(where, prompt, output, time)


def _prompt_tokens(
    where: str, item: Mapping[str, object], count_tokens: CountTokens | None
) -> object:
    if "prompt_tokens" in item:
        return item["prompt_tokens"]
    prompt = item.get("prompt")
    if isinstance(prompt, list):
        return len(prompt)
    if not isinstance(prompt, str):
        raise UsageError(
            f"{where}: has no prompt and no timestamp; for a trace with other names "
            "give the --timed-trace-label options."
        )
    if count_tokens is None:
        raise UsageError(
            f"{where}: the prompt is text; give --tokenizer to count its tokens, or "
            "add a number prompt_tokens to each line."
        )
    return count_tokens(prompt)
