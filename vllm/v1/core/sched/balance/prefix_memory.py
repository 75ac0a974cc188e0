# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Which beginnings of prompts a rank is believed to have in its KV cache.

Pure Python: no torch, no vllm import.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

LEAST_CHUNK_TOKENS = 512
"""Prompt tokens of a chunk, at least: smaller ones cost more to hash than they find."""

Keys = Sequence[Hashable]
"""For each whole chunk of a prompt, a key of all that makes its KV cache up to its end:
tokens, adapter, images, salt."""


def chunk_tokens(block_size: int) -> int:
    """The prompt tokens of a chunk, which are those of whole blocks."""
    return -(-LEAST_CHUNK_TOKENS // block_size) * block_size


class SentPrefix(NamedTuple):
    """A prompt that went to a rank."""

    keys: Keys
    believed: Sequence[int]
    """Of each chunk that the rank was believed to have: its last use, or 0 if no
    prompt with it was computed yet, so that the rank may not have it."""


class PrefixMemory:
    """What one rank has of earlier prompts, as far as this front-end knows.

    Computed prompts alone are remembered: as many chunks as its KV cache may hold; what
    was used least recently goes first, of a prompt the end before the beginning, as the
    rank does it. What the rank answers corrects it: if it has lost a chunk, then also
    everything that was used no later. That takes care of a cache that was reset or put
    to sleep, of blocks that answers take, and of what other front-ends send.

    A prompt that is on its way is found, too, until it is computed or given up. It is
    kept apart, so that whoever sends prompts and gives them up moves nothing.
    """

    def __init__(self, chunks: int, tokens: int) -> None:
        """Starts empty.

        Args:
            chunks: that the rank's KV cache holds.
            tokens: prompt tokens of a chunk.
        """
        self._most = chunks
        self._tokens = tokens
        self._last: OrderedDict[Hashable, int] = OrderedDict()
        """By key of a chunk, the number of its last use, oldest first."""
        self._number = 0
        self._on_the_way: Counter[Hashable] = Counter()
        """By key of a chunk, in how many prompts that are not computed yet."""

    def held(self) -> int:
        """Tokens that the rank is believed to have, of all prompts."""
        return len(self._last) * self._tokens

    def found(self, keys: Keys) -> int:
        """How many tokens of a prompt the rank is believed to have, or will have.

        No chunk is known without those before it, so that few need to be looked up.
        """
        last, on_the_way = self._last, self._on_the_way
        if not keys or (keys[0] not in last and keys[0] not in on_the_way):
            return 0
        if keys[-1] in last or keys[-1] in on_the_way:
            return len(keys) * self._tokens
        low, high = 1, len(keys)
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in last or keys[middle] in on_the_way:
                low = middle + 1
            else:
                high = middle
        return low * self._tokens

    def sent(self, keys: Keys) -> SentPrefix:
        """A prompt goes to the rank, which will then have it."""
        found = self.found(keys) // self._tokens
        believed = [self._last.get(key, 0) for key in keys[:found]]
        self._on_the_way.update(keys)
        return SentPrefix(keys, believed)

    def used(self, keys: Keys) -> None:
        """The rank has a prompt."""
        self._number += 1
        for key in reversed(keys):
            self._last[key] = self._number
            self._last.move_to_end(key)
        while len(self._last) > self._most:
            self._last.popitem(last=False)

    def computed(self, prefix: SentPrefix, cached_tokens: int | None = None) -> None:
        """The rank has computed a prompt.

        Args:
            prefix: what `sent` returned.
            cached_tokens: that it did not have to compute, if it says so.
        """
        self.given_up(prefix)
        if cached_tokens is not None:
            # A chunk of which the rank had a part counts as found: of a prompt that it
            # has whole, it computes the last block anew.
            chunks = -(-cached_tokens // self._tokens)
            lost = max(prefix.believed[chunks:], default=0)
            while self._last and next(iter(self._last.values())) <= lost:
                self._last.popitem(last=False)
        self.used(prefix.keys)

    def given_up(self, prefix: SentPrefix) -> None:
        """A prompt is not on its way any more; it has changed nothing."""
        take_off(self._on_the_way, prefix.keys)


def take_off(counts: Counter[Hashable], keys: Keys) -> None:
    """Takes one of each key, and leaves no zeros behind."""
    counts.subtract(keys)
    for key in keys:
        if not counts[key]:
            del counts[key]
