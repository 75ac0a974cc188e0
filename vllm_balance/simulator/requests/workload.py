# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The requests that are sent: their lengths, and the shared parts of prompts."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import UsageError
from ..arguments import MOST_TOKENS
from .request import SimRequest
from .sessions import Runs
from .traces import TimedTrace, Trace, read_trace

Lengths = Callable[[random.Random], int]
"""Draws one length, in tokens."""


LENGTH_HELP = (
    "N or fixed:N, uniform:LOW:HIGH, normal:MEAN:RELATIVE_DEVIATION, or "
    "lognormal:MEDIAN:SIGMA[:MAX]"
)


def parse_lengths(option: str, text: str) -> Lengths:
    """Reads a distribution of lengths in the form of `LENGTH_HELP`.

    Raises:
        UsageError: the text has another form.
    """
    kind, _, rest = text.partition(":")
    if not rest:
        kind, rest = "fixed", text
    try:
        numbers = [float(part) for part in rest.split(":")]
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError
        draw = _lengths(kind, *numbers)
    except (ValueError, TypeError):
        raise UsageError(
            f"{option} {text}: not a distribution of lengths; give {LENGTH_HELP}, of "
            f"1 to {MOST_TOKENS} tokens."
        ) from None

    def checked(rng: random.Random) -> int:
        try:
            length = draw(rng)
        except OverflowError:
            length = MOST_TOKENS + 1
        if length > MOST_TOKENS:
            raise UsageError(
                f"{option} {text}: a request has more than {MOST_TOKENS} tokens; give "
                "a narrower distribution."
            )
        return length

    return checked


def _lengths(kind: str, first: float, *rest: float) -> Lengths:
    if not 1 <= first <= MOST_TOKENS:
        raise ValueError
    if kind == "fixed":
        () = rest
        return lambda rng: int(first)
    if kind == "uniform":
        (high,) = rest
        if not first <= high <= MOST_TOKENS:
            raise ValueError
        return lambda rng: rng.randint(int(first), int(high))
    if kind == "normal":
        (deviation,) = rest
        return lambda rng: max(1, int(rng.gauss(first, deviation * first)))
    if kind == "lognormal":
        sigma, limit = (*rest, math.inf) if len(rest) == 1 else rest
        if limit < first:
            raise ValueError
        mu = math.log(first)
        return lambda rng: max(1, int(min(limit, rng.lognormvariate(mu, sigma))))
    raise ValueError


@dataclass(frozen=True)
class Workload:
    """The requests, drawn or of a trace, in their order."""

    num_prompts: int | None = 2048
    """None for as many as the trace has."""
    input_len: str = "3500"
    output_len: str = "1500"
    trace: Path | None = None
    """Requests from a file instead of the two distributions."""
    timed_trace: TimedTrace = field(default_factory=TimedTrace)
    """How to read the file."""
    prefix_share: float = 0.0
    """Share of each prompt that is the beginning of one of `num_prefixes` texts."""
    num_prefixes: int = 8
    session_shared: int = 0
    """Tokens that the prompts of all sessions of a trace begin with."""
    session_turns: int | None = None
    """How many first requests of each session are sent; None for all."""
    prefixes_cached: bool = False
    """Whether all ranks have the prefixes in the KV cache from the start."""

    def requests(self, rng: random.Random) -> list[SimRequest]:
        """Draws the requests; equal generators give equal requests."""
        count = self.num_prompts
        if self.trace is not None:
            trace = read_trace(self.trace, self.timed_trace)
            return traced_requests(
                trace, count, self.session_shared, self.session_turns
            )
        if count is None:
            raise UsageError("--num-prompts: needed unless there is a trace.")
        prompt = parse_lengths("--input-len", self.input_len)
        output = parse_lengths("--output-len", self.output_len)
        requests = [
            SimRequest(i, prompt(rng), output(rng), session=i) for i in range(count)
        ]
        for request in requests if self.prefix_share else ():
            if self.prefixes_cached:
                request.chunk_size = 128  # large, because none of them is computed
            chunks = int(self.prefix_share * request.prompt_len) // request.chunk_size
            texts = self.num_prefixes
            text = rng.randrange(texts)
            request.hash_ids = range(text, chunks * texts + text, texts)
            request.has_cached = self.prefixes_cached
        return requests


def traced_requests(
    trace: Trace,
    count: int | None,
    session_shared: int = 0,
    session_turns: int | None = None,
) -> list[SimRequest]:
    """The first `count` requests of a trace, which is repeated if it has no times.

    A repeated session has other texts but for the shared tokens.

    Raises:
        UsageError: a trace with times has fewer, or the trace has no sessions.
    """
    has_sessions = any(isinstance(row.hash_ids, Runs) for row in trace.rows)
    if (session_shared or session_turns is not None) and not has_sessions:
        raise UsageError(
            "--session-turns, --session-shared-tokens: the dataset has no sessions; "
            "leave them out."
        )
    rows, turn = [], 0
    for row in trace.rows:
        turn = 1 if row.think is None else turn + 1
        if session_turns is None or turn <= session_turns:
            rows.append(row)
    count = len(rows) if count is None else count
    if trace.is_timed and count > len(rows):
        raise UsageError(
            f"--num-prompts {count}: the trace has {len(rows)} requests in the window; "
            "leave it out, or give at most these."
        )
    requests = []
    session = -1
    for index in range(count):
        row = rows[index % len(rows)]
        session += row.think is None
        request = SimRequest(index, row.prompt_len, row.output_len)
        request.due = math.nan if row.time is None else row.time
        request.hash_ids, request.chunk_size = row.hash_ids, trace.chunk_size
        request.session, request.think = session, row.think
        if isinstance(row.hash_ids, Runs) and not (
            row.hash_ids.is_global and index < len(rows)
        ):
            shared = session_shared // trace.chunk_size
            request.hash_ids = Runs(row.hash_ids.ranges, False, shared, session)
        requests.append(request)
    return requests
