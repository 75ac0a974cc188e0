# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Requests: how many tokens they bring, and how many they ask for."""

import math
import random
from collections.abc import Callable, Sequence

from ..errors import UsageError

Lengths = Callable[[random.Random], int]
"""Draws one length, in tokens."""


class SimRequest:
    """One request and what became of it. Times are in seconds."""

    __slots__ = (
        "chunk_size",
        "done",
        "due",
        "first_token",
        "hash_ids",
        "index",
        "output_len",
        "prompt_len",
        "rank",
        "sent",
        "server",
    )

    def __init__(self, index: int, prompt_len: int, output_len: int) -> None:
        self.index = index
        self.due = math.nan
        """When it is to be sent, if a trace says so."""
        self.hash_ids: tuple[int, ...] = ()
        """Of the first chunks of the prompt: equal beginnings are shared."""
        self.chunk_size = 16
        """Tokens in a chunk."""
        self.prompt_len = prompt_len
        self.output_len = output_len
        self.rank = -1
        self.server = 0
        """Number of the API server that handles it."""
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


def share_prefixes(
    requests: Sequence[SimRequest], share: float, prefixes: int, rng: random.Random
) -> None:
    """Lets prompts begin with one of some texts, which are as long as need be.

    Args:
        requests: without hash ids.
        share: of each prompt, rounded down to chunks.
        prefixes: how many texts there are; each request draws one.
        rng: source of chance.
    """
    for request in requests:
        chunks = int(share * request.prompt_len) // request.chunk_size
        text = rng.randrange(prefixes)
        request.hash_ids = tuple(chunk * prefixes + text for chunk in range(chunks))
