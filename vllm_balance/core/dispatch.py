# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Chooses the rank that a front-end sends a request to: the one with least to do."""

import sys
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

Keys = Sequence[Hashable]
"""One for each whole chunk of a prompt, of all that its KV cache depends on."""

LEAST_CHUNK_TOKENS = 512
"""Least prompt tokens of a chunk: smaller ones cost more to hash than they find."""


def chunk_tokens(block_size: int) -> int:
    """The prompt tokens of a chunk, which consists of whole blocks."""
    return -(-LEAST_CHUNK_TOKENS // block_size) * block_size


class Weights(NamedTuple):
    """How much work for its rank each part of a request in flight is taken to be."""

    to_compute: int
    """For each prompt token, until the first token of the answer."""
    to_attend: int
    """For each token of prompt and answer, until the request ends."""
    request: int
    """For each request, beside its tokens."""


TO_COMPUTE = Weights(1, 0, 150)
TO_ATTEND = Weights(0, 1, 1500)
"""For decode instances, where all prompts arrive computed: their ranks step together,
so that a step lasts as long as that of the rank with the most context. The weight of a
request is for what its answer is still to add, too: 1,000 to 4,000 are within 1 %."""

MISSING_WEIGHT = 4
"""A token of the request's own prompt that is not cached on a rank counts as many as so
many tokens that wait there: all ranks wait for it, and both KV caches keep it."""

MOST_RANKS = 1024
"""Ranks beyond these get no requests by this dispatch."""

_FULL = sys.maxsize
"""The load of a rank without a free slot: more than any other."""


class Board:
    """What front-ends know of each other's requests; here there is only one."""

    server, servers = 0, 1

    def __init__(self) -> None:
        # Of each rank, what this front-end has sent and is not done.
        self.tokens: MutableSequence[int] = [0] * MOST_RANKS
        """Weighted tokens of each rank."""
        self.requests: MutableSequence[int] = [0] * MOST_RANKS

    def totals(self, ranks: int) -> Sequence[Sequence[int]]:
        return self.tokens[:ranks], self.requests[:ranks]

    def publish(self, rank: int, keys: Keys) -> None:
        """Tells the others that a rank has computed a prompt."""

    def read_others(self) -> Iterable[tuple[int, Hashable]]:
        """Ranks and keys of new chunks of others, the last of a prompt first."""
        return ()


class PrefixMemory:
    """The chunks, used last, that a rank is believed to have in its KV cache."""

    def __init__(self, chunks: int) -> None:
        self._most = chunks
        self._keys: OrderedDict[Hashable, None] = OrderedDict()
        self.coming: Counter[Hashable] = Counter()
        """By key, in how many prompts it is that are still to be computed. They count
        apart, so that prompts which are given up evict nothing."""

    def __len__(self) -> int:
        return len(self._keys)

    def found(self, keys: Keys) -> int:
        """How many chunks of a prompt are there, or will be.

        None is there without those before it, so that few need to be looked up.
        """
        # Once for each rank and choice: a call for every look would double its time.
        here, coming = self._keys, self.coming
        if not keys or (keys[0] not in here and keys[0] not in coming):
            return 0
        if keys[-1] in here or keys[-1] in coming:
            return len(keys)
        low, high = 1, len(keys)
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in here or keys[middle] in coming:
                low = middle + 1
            else:
                high = middle
        return low

    def used(self, keys: Keys) -> None:
        """Notes that a prompt was used; its end is forgotten before its beginning."""
        for key in reversed(keys):
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._most:
            self._keys.popitem(last=False)


@dataclass(slots=True)
class _Sent:
    rank: int
    keys: Keys
    """Those of its prompt."""
    to_compute: int = 0
    """Prompt tokens to compute; 0 once the first token has come."""
    context: int = 0
    """Tokens of prompt and answer so far."""


class Dispatch:
    """Sends each request to the rank that has least to do.

    A rank with a free slot comes before one without; then the least weighted tokens,
    plus the weight of a request for every one in flight, plus `MISSING_WEIGHT` for each
    token of this prompt that is not in the rank's KV cache. What n requests in flight
    have too counts 1 / (n + 1) of that: a rank that computes it does so for all that
    come. Other front-ends are taken to have such requests in the same proportion.
    """

    def __init__(
        self,
        ranks: int,
        slots: int,
        weights: Weights = TO_COMPUTE,
        board: Board | None = None,
        cached_chunks: int = 0,
        chunk_tokens: int = 1,
    ) -> None:
        """Starts without requests.

        `slots` are requests that a rank runs at once, `cached_chunks` of `chunk_tokens`
        each fit in its KV cache: 0 without prefix caching.
        """
        self._slots = slots
        self._weights = weights
        self._board = board or Board()
        self.chunks, self.chunk_tokens = cached_chunks, chunk_tokens
        self._requests: dict[Hashable, _Sent] = {}
        self._users: Counter[Hashable] = Counter()
        """How many requests in flight have each chunk, by its key."""
        self.memories: list[PrefixMemory] = []
        """One for each rank."""
        self.resize(ranks)

    @property
    def own(self) -> list[tuple[int, int]]:
        """Per rank, weighted tokens and requests that were sent and are not done."""
        own = zip(self._board.tokens, self._board.requests, strict=True)
        return list(own)[: self.ranks]

    def resize(self, ranks: int) -> None:
        """Follows the number of ranks; forgets requests of ranks that are gone."""
        for request, sent in list(self._requests.items()):
            if sent.rank >= ranks:
                self.ended(request)
        self.ranks = min(ranks, MOST_RANKS)
        # Of equal ranks, each front-end prefers another.
        first = self.ranks * self._board.server // self._board.servers
        self._scan = [*range(first, self.ranks), *range(first)]
        kept = self.memories[: self.ranks]
        new = range(len(kept), self.ranks)
        self.memories = kept + [PrefixMemory(self.chunks) for _ in new]

    def choose(self, keys: Keys = ()) -> int:
        tokens, requests = self._board.totals(self.ranks)
        each = self._weights.request
        loads = [a + each * b for a, b in zip(tokens, requests, strict=True)]
        if max(requests) >= self._slots:
            for rank, count in enumerate(requests):
                loads[rank] += _FULL * (count >= self._slots)
        for rank, key in self._board.read_others():
            if rank < self.ranks:
                self.memories[rank].used([key])
        found = [memory.found(keys) for memory in self.memories] if keys else [0]
        if not any(found):
            return min(self._scan, key=loads.__getitem__)
        users, share = self._users, sum(requests) / max(1, len(self._requests))
        known, chunk = keys[: max(found)], self.chunk_tokens
        parts = accumulate([chunk / (1 + share * users.get(key, 0)) for key in known])
        saved = [0, *(int(MISSING_WEIGHT * tokens) for tokens in parts)]
        loads = [
            load - saved[chunks] for load, chunks in zip(loads, found, strict=True)
        ]
        return min(self._scan, key=loads.__getitem__)

    def rank_of(self, request: Hashable) -> int | None:
        sent = self._requests.get(request)
        return None if sent is None else sent.rank

    def sent(
        self, request: Hashable, rank: int, prompt_tokens: int, keys: Keys = ()
    ) -> None:
        """Notes that a request with these keys, or more input of one, was sent.

        What goes to a rank that was not heard of yet is not counted, and more input is
        no beginning of a prompt.
        """
        if rank >= self.ranks:
            return
        sent = self._requests.get(request)
        missing = prompt_tokens
        if sent is None:
            sent = self._requests[request] = _Sent(rank, keys)
            self._board.requests[rank] += 1
            self._users.update(keys)
            missing -= self.memories[rank].found(keys) * self.chunk_tokens
        if not sent.to_compute:
            self.memories[sent.rank].coming.update(sent.keys)
        self._add(sent, max(1, missing), prompt_tokens)

    def answered(self, request: Hashable, tokens: int) -> None:
        """Notes that tokens of an answer have passed: so its prompt is computed."""
        sent = self._requests.get(request)
        if sent is None:
            return
        if sent.to_compute:
            self._computed(sent)
            self.memories[sent.rank].used(sent.keys)
            self._board.publish(sent.rank, sent.keys)
        if self._weights.to_attend:
            self._add(sent, 0, tokens)

    def ended(self, request: Hashable) -> None:
        """Notes that a request has ended in any way, or was never taken."""
        sent = self._requests.pop(request, None)
        if sent is not None:
            self._computed(sent)
            self._add(sent, 0, -sent.context)
            self._board.requests[sent.rank] -= 1
            _take_off(self._users, sent.keys)

    def _computed(self, sent: _Sent) -> None:
        """Takes its prompt off what the rank has to compute."""
        if sent.to_compute:
            self._add(sent, -sent.to_compute, 0)
            _take_off(self.memories[sent.rank].coming, sent.keys)

    def _add(self, sent: _Sent, to_compute: int, context: int) -> None:
        sent.to_compute += to_compute
        sent.context += context
        compute, attend, _ = self._weights
        self._board.tokens[sent.rank] += compute * to_compute + attend * context


def _take_off(counts: Counter[Hashable], keys: Keys) -> None:
    for key in keys:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
