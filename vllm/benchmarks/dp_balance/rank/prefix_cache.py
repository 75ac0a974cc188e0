# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Which beginnings of prompts a rank has in its KV cache, which never fills."""

from collections import defaultdict

from ..requests.workload import SimRequest

BLOCK_SIZE = 16
"""Tokens in a block of the KV cache: whole blocks are shared."""


class PrefixCache:
    """The prompts of one rank as a tree of chunks."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], int] = {}
        """By the number of the chunk before it and the hash id, a chunk's number."""
        self._blocks: defaultdict[int, int] = defaultdict(int)
        """Of each chunk, how many are cached, from its beginning."""

    def _chunk(self, parent: int, hash_id: int) -> int:
        return self._nodes.setdefault((parent, hash_id), len(self._nodes) + 1)

    def hit(self, request: SimRequest) -> int:
        """Tokens of the prompt that need not be computed. The last one always is."""
        blocks = parent = 0
        per_chunk = request.chunk_size // BLOCK_SIZE
        for hash_id in request.hash_ids:
            parent = self._chunk(parent, hash_id)
            blocks += self._blocks[parent]
            if self._blocks[parent] < per_chunk:
                break
        return BLOCK_SIZE * min(blocks, (request.prompt_len - 1) // BLOCK_SIZE)

    def store(self, request: SimRequest, computed: int) -> None:
        """The first tokens of the prompt, `computed` of them, are in the cache."""
        parent = 0
        blocks = computed // BLOCK_SIZE
        per_chunk = request.chunk_size // BLOCK_SIZE
        for hash_id in request.hash_ids:
            if blocks <= 0:
                break
            parent = self._chunk(parent, hash_id)
            cached = min(blocks, per_chunk)
            self._blocks[parent] = max(self._blocks[parent], cached)
            blocks -= per_chunk


def prompt_tokens(request: SimRequest) -> list[int]:
    """Token ids that are equal exactly where prompts share chunks."""
    shared = [
        hash_id * request.chunk_size + i
        for hash_id in request.hash_ids
        for i in range(request.chunk_size)
    ][: request.prompt_len]
    return shared + [own_token(request)] * (request.prompt_len - len(shared))


def own_token(request: SimRequest) -> int:
    """The token of which the rest of its prompt, and its answer, consist."""
    return -1 - request.index
