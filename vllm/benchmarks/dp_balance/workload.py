# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Requests: how many tokens they bring, and how many they ask for."""

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import UsageError

Lengths = Callable[[random.Random], int]
"""Draws one length, in tokens."""

CountTokens = Callable[[str], int]


class SimRequest:
    """One request and what became of it. Times are in seconds."""

    __slots__ = (
        "done",
        "first_token",
        "index",
        "left",
        "output_len",
        "pending_since",
        "prompt_len",
        "rank",
        "sent",
        "server",
    )

    def __init__(self, index: int, prompt_len: int, output_len: int) -> None:
        self.index = index
        self.prompt_len = prompt_len
        self.output_len = output_len
        self.left = prompt_len
        """Prompt tokens that are not computed yet."""
        self.rank = -1
        self.server = 0
        """Number of the API server that handles it."""
        self.pending_since = math.nan
        """When the request was first seen admissible."""
        self.sent = self.first_token = self.done = math.nan


LENGTH_HELP = (
    "N or fixed:N, uniform:LOW:HIGH, normal:MEAN:RELATIVE_DEVIATION, or "
    "lognormal:MEDIAN:SIGMA[:MAX]"
)


def parse_lengths(option: str, text: str) -> Lengths:
    """Reads a distribution of lengths as `LENGTH_HELP` says.

    Args:
        option: the option it was given to, for errors.
        text: the distribution.

    Raises:
        UsageError: it is none.
    """
    kind, _, rest = text.partition(":")
    if not rest:
        kind, rest = "fixed", text
    try:
        numbers = [float(part) for part in rest.split(":")]
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError
        return _lengths(kind, *numbers)
    except (ValueError, TypeError):
        raise UsageError(
            f"{option} {text}: not a distribution of lengths; give {LENGTH_HELP}."
        ) from None


def _lengths(kind: str, first: float, *rest: float) -> Lengths:
    if first < 1:
        raise ValueError
    if kind == "fixed":
        () = rest
        return lambda rng: int(first)
    if kind == "uniform":
        (high,) = rest
        if high < first:
            raise ValueError
        return lambda rng: rng.randint(int(first), int(high))
    if kind == "normal":
        (deviation,) = rest
        return lambda rng: max(1, int(rng.gauss(first, deviation * first)))
    if kind == "lognormal":
        sigma, limit = (*rest, math.inf) if len(rest) == 1 else rest
        mu = math.log(first)
        return lambda rng: max(1, int(min(limit, rng.lognormvariate(mu, sigma))))
    raise ValueError


def draw_requests(
    count: int, prompt: Lengths, output: Lengths, rng: random.Random
) -> list[SimRequest]:
    """Draws `count` requests."""
    return [SimRequest(i, prompt(rng), output(rng)) for i in range(count)]


def requests_of(
    lengths: Sequence[tuple[int, int]], count: int | None
) -> list[SimRequest]:
    """Requests with these (prompt, output) lengths, repeated up to `count`."""
    count = len(lengths) if count is None else count
    return [SimRequest(i, *lengths[i % len(lengths)]) for i in range(count)]


def read_trace(
    path: Path, count_tokens: CountTokens | None = None
) -> list[tuple[int, int]]:
    """Reads (prompt, output) lengths in tokens from what `vllm bench serve` knows.

    Args:
        path: either its custom dataset, one JSON object with ``prompt`` and
            ``output_tokens`` per line (a number ``prompt_tokens`` is used instead
            of counting), or a result that it saved with ``--save-detailed``.
        count_tokens: counts the tokens of a prompt that is text.

    Raises:
        UsageError: the file cannot be read or is neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}).") from None
    lengths: list[tuple[int, int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            lengths += _trace_line(f"{path} line {number}", line, count_tokens)
    if not lengths:
        raise UsageError(f"{path}: holds no request.")
    return lengths


def _trace_line(
    where: str, line: str, count_tokens: CountTokens | None
) -> list[tuple[int, int]]:
    try:
        item = json.loads(line)
    except ValueError:
        item = None
    if not isinstance(item, dict):
        raise UsageError(
            f"{where}: not a JSON object; give the custom dataset of `vllm bench "
            "serve` (.jsonl) or its saved result."
        )
    if "input_lens" in item and "output_lens" in item:
        pairs = list(zip(item["input_lens"], item["output_lens"], strict=False))
    elif "total_input_tokens" in item:
        raise UsageError(
            f"{where}: a result without lengths of requests; save it with "
            "`vllm bench serve --save-result --save-detailed`."
        )
    else:
        pairs = [(_prompt_tokens(where, item, count_tokens), item.get("output_tokens"))]
    checked: list[tuple[int, int]] = []
    for prompt, output in pairs:
        if not _is_length(prompt) or not _is_length(output):
            raise UsageError(
                f"{where}: {prompt!r} prompt tokens and {output!r} output tokens; "
                "both must be whole numbers of at least 1."
            )
        checked.append((int(prompt), int(output)))
    return checked


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _prompt_tokens(
    where: str, item: dict[str, object], count_tokens: CountTokens | None
) -> object:
    if "prompt_tokens" in item:
        return item["prompt_tokens"]
    prompt = item.get("prompt")
    if isinstance(prompt, list):
        return len(prompt)
    if not isinstance(prompt, str):
        raise UsageError(f"{where}: has no prompt.")
    if count_tokens is None:
        raise UsageError(
            f"{where}: the prompt is text; give --tokenizer to count its tokens, or "
            "add a number prompt_tokens to each line."
        )
    return count_tokens(prompt)
