# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Which rank a front-end sends a request to: by the prompt tokens it still waits for.

Pure Python: no torch, no vllm import.
"""

import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from .prefix_memory import Keys, PrefixMemory, SentPrefix, take_off

REQUEST_TOKENS = 150
"""Prompt tokens that wait for prefill, like which a request in flight counts."""

MISSING_WEIGHT = 4
"""A prompt token that a rank would have to compute of the request itself counts like so
many that wait there: all ranks wait for it, and both KV caches keep it."""

_FULL = sys.maxsize
"""More than any load: a rank without a free slot."""


class Backlog(NamedTuple):
    """What a rank has to do."""

    prompt_tokens: int = 0
    """Unprefilled ones; by context, all to which its requests attend."""
    requests: int = 0
    """In flight: waiting and running."""


QUEUE_SAMPLE = 64
"""Waiting requests whose prompts a rank adds up; it takes the others to be like them,
because it does so in every step."""


def queued_tokens(sample: Sequence[int], waiting: int) -> int:
    """Prompt tokens of a queue.

    Args:
        sample: those of the first `QUEUE_SAMPLE` requests, or of all.
        waiting: how many requests there are.
    """
    if waiting <= len(sample):
        return sum(sample)
    return round(sum(sample) * waiting / len(sample))


@dataclass(slots=True)
class _Sent:
    rank: int
    tokens: int
    """Of its prompt, to compute; 0 once the first token has come."""
    prefix: SentPrefix | None
    """None once the first token has come."""
    keys: Keys
    """Of its prompt."""


class TokenDispatch:
    """Sends each request to the rank that has least to do.

    A rank with a free slot comes before one without; then the least unprefilled
    prompt tokens, plus `REQUEST_TOKENS` for every request in flight, plus
    `MISSING_WEIGHT` for each token of this prompt that is not in its KV cache. What n
    requests in flight have too counts 1 / (n + 1) of that: a rank that computes it does
    so for all that come. A front-end knows this of its own requests at once. Where
    there are several, it also takes what the ranks publish of all requests, and
    believes the greater of the two; of prefixes it hears once they are computed.
    """

    request_tokens = REQUEST_TOKENS
    """That each request in flight counts like."""

    def __init__(
        self,
        ranks: int,
        slots: int,
        servers: int = 1,
        server: int = 0,
        cached_chunks: int = 0,
        chunk_tokens: int = 1,
    ) -> None:
        """Starts without requests.

        Args:
            ranks: data parallel size.
            slots: requests that a rank runs at once.
            servers: front-ends that send requests to these ranks.
            server: number of this one; of equal ranks, each prefers another.
            cached_chunks: of prompts, that the KV cache of a rank holds; 0 without
                prefix caching.
            chunk_tokens: prompt tokens of a chunk.
        """
        self._slots = slots
        self._servers = servers
        first = ranks * server // servers
        self._scan = [*range(first, ranks), *range(first)]
        self._requests: dict[Hashable, _Sent] = {}
        self._users: Counter[Hashable] = Counter()
        """By key of a chunk, how many requests in flight have it."""
        # Of each rank what this front-end has sent and is not done, in two lists,
        # because it changes with every request.
        self._tokens, self._counts = [0] * ranks, [0] * ranks
        self._told_tokens, self._told_counts = [0] * ranks, [0] * ranks
        self._cache = cached_chunks, chunk_tokens
        self.memories = self._empty(ranks)
        """What is believed to be in the KV cache of each rank."""

    def _empty(self, ranks: int) -> list[PrefixMemory]:
        return [PrefixMemory(*self._cache) for _ in range(ranks)]

    @property
    def own(self) -> list[Backlog]:
        """What this front-end has sent to each rank and is not done."""
        return list(map(Backlog, self._tokens, self._counts))

    def publish(self, backlogs: Sequence[tuple[int, int]]) -> None:
        """Takes what the ranks publish: fields of `Backlog`, of all front-ends.

        Their number may have changed since the last time: requests of ranks that are
        gone are forgotten.
        """
        told = zip(*backlogs, strict=True)
        self._told_tokens, self._told_counts = map(list, told)
        ranks = len(backlogs)
        for request, sent in list(self._requests.items()):
            if sent.rank >= ranks:
                self.ended(request)
        new = ranks - len(self._tokens)
        if new:
            self._tokens = self._tokens[:ranks] + [0] * new
            self._counts = self._counts[:ranks] + [0] * new
            self.memories = self.memories[:ranks] + self._empty(new)
            self._scan = [each for each in self._scan if each < ranks]
            self._scan += range(ranks - max(new, 0), ranks)

    def choose(self, keys: Keys = ()) -> int:
        """The rank for the next request, whose prompt has these keys."""
        tokens, counts = self._tokens, self._counts
        if self._servers > 1:
            tokens = [*map(max, tokens, self._told_tokens)]
            counts = [*map(max, counts, self._told_counts)]
        each = self.request_tokens
        loads = [a + each * b for a, b in zip(tokens, counts, strict=True)]
        if max(counts) >= self._slots:
            for rank, count in enumerate(counts):
                loads[rank] += _FULL * (count >= self._slots)
        if keys:
            held = [memory.held() for memory in self.memories]
            chunk, users, servers = self._cache[1], self._users, self._servers
            found = [memory.found(keys) // chunk for memory in self.memories]
            known = keys[: max(found)]
            saved = [0.0, *accumulate(chunk / (1 + servers * users[k]) for k in known)]
            for rank, chunks in enumerate(found):
                loads[rank] -= int(MISSING_WEIGHT * saved[chunks])
            return min(self._scan, key=lambda rank: (loads[rank], held[rank]))
        return min(self._scan, key=loads.__getitem__)

    def rank_of(self, request: Hashable) -> int | None:
        """Where a request that has not ended was sent."""
        sent = self._requests.get(request)
        return None if sent is None else sent.rank

    def sent(
        self, request: Hashable, rank: int, prompt_tokens: int, keys: Keys = ()
    ) -> None:
        """A request, or more input of it, goes to a rank.

        The other front-ends are taken to send as much as this one. What goes to a rank
        that was not heard of yet is not counted.

        Args:
            request: its name.
            rank: where it goes.
            prompt_tokens: of this input.
            keys: of its prompt; none for more input, which is no beginning.
        """
        if request in self._requests:
            self.first_token(request)
            self.ended(request)
        if rank >= len(self._tokens):
            return
        prefix = None
        if keys:
            memory = self.memories[rank]
            prompt_tokens = max(1, prompt_tokens - memory.found(keys))
            prefix = memory.sent(keys)
            self._users.update(keys)
        self._requests[request] = _Sent(rank, prompt_tokens, prefix, keys)
        self._tokens[rank] += prompt_tokens
        self._counts[rank] += 1
        if self._servers > 1:
            self._told_tokens[rank] += self._servers * prompt_tokens
            self._told_counts[rank] += self._servers

    def first_token(
        self, request: Hashable, cached_tokens: int | None = None
    ) -> tuple[int, Keys] | None:
        """The request's prompt is computed.

        Args:
            request: its name.
            cached_tokens: of the prompt, that its rank had, if it says so.

        Returns:
            The rank and what it has now, if there is something to tell others.
        """
        sent = self._requests.get(request)
        if sent is None or not sent.tokens:
            return None
        self._tokens[sent.rank] -= sent.tokens
        prefix, sent.tokens, sent.prefix = sent.prefix, 0, None
        if prefix is None:
            return None
        self.memories[sent.rank].computed(prefix, cached_tokens)
        return sent.rank, prefix.keys

    def heard(self, rank: int, keys: Keys) -> None:
        """Another front-end says what its first token meant."""
        if rank < len(self.memories):
            self.memories[rank].used(keys)

    def ended(self, request: Hashable) -> None:
        """The request has ended in any way, or was never taken."""
        sent = self._requests.pop(request, None)
        if sent is not None:
            self._tokens[sent.rank] -= sent.tokens
            self._counts[sent.rank] -= 1
            if sent.prefix is not None:
                self.memories[sent.rank].given_up(sent.prefix)
            take_off(self._users, sent.keys)
