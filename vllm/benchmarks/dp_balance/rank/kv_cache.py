# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A rank's KV cache: without end, or blocks of which some are free."""

import sys
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from ..requests.request import SimRequest
from .limits import BLOCK_SIZE, blocks_of
from .prefix_hits import FoundPrefixes, Hit
from .request import Block, Key, RankRequest


def make_blocks(
    count: int | None, shared_prefixes: bool, async_scheduling: bool
) -> "Blocks":
    """The KV cache of a rank.

    Args:
        count: blocks, vLLM's null block included; None for one that never fills.
        shared_prefixes: whether prompts share beginnings: then all are cached.
        async_scheduling: whether a step is scheduled before the last has ended.
    """
    if count is None:
        return EndlessBlocks()
    if shared_prefixes:
        return CachedBlocks(count - 1, async_scheduling)
    return Blocks(count - 1)


class Blocks:
    """Blocks of which only the number matters: no prompt shares its beginning."""

    is_limited = True
    """Whether they can be used up."""

    def __init__(self, count: int) -> None:
        self.free = count
        """Blocks that no request uses."""

    def add(self, work: RankRequest) -> None:
        """A request has come to wait."""

    def start(self, work: RankRequest) -> bool:
        """Lets a waiting request find what is cached of it, if all of it fits."""
        return blocks_of(work.num_tokens) <= self.free

    def take(self, work: RankRequest, count: int) -> None:
        """Gives a request so many free blocks more."""
        self.free -= count

    def take_one_each(self, works: Iterable[RankRequest], count: int) -> None:
        """Gives a free block more to each of the requests, `count` in all."""
        self.free -= count

    def computed(self, work: RankRequest) -> None:
        """Some of a prompt is computed by the step that is being scheduled."""

    def release(self, work: RankRequest) -> None:
        """Takes back the blocks of a request, which hold its computed tokens."""
        self.free += blocks_of(work.num_computed_tokens)

    def left(self, work: RankRequest) -> int:
        """Tokens to compute of a request that has just come."""
        return work.num_tokens

    def needs(
        self, works: Sequence[RankRequest], room: int
    ) -> Iterator[tuple[int, int]]:
        """What the gate expects of waiting requests, once after each step.

        Args:
            works: requests in their turn.
            room: free blocks that they may take.

        Returns:
            Of each, the free blocks that it takes, and its tokens that are cached. The
            blocks may be too many if there is room for all.
        """
        return ((blocks_of(work.num_tokens), 0) for work in works)


class Chunks:
    """Numbers the beginnings of prompts, chunk by chunk."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        """By the number of the chunk before it and the hash id, a chunk's number."""

    def of(self, request: SimRequest) -> list[int]:
        """A number for each chunk; equal ones mean equal text up to its end."""
        numbers, parent = [], 0
        for hash_id in request.hash_ids:
            next_number = len(self._numbers) + 1
            parent = self._numbers.setdefault((parent, hash_id), next_number)
            numbers.append(parent)
        return numbers


class EndlessBlocks(Blocks):
    """A cache that never fills: what was computed once stays, and is found at once."""

    is_limited = False

    def __init__(self) -> None:
        super().__init__(sys.maxsize)
        self._chunks = Chunks()
        self._computed: dict[int, int] = {}
        """By number of a chunk, how far prompts with it were computed, in tokens."""

    def add(self, work: RankRequest) -> None:
        """A request has come to wait."""
        work.chunks = self._chunks.of(work.request)

    def _hits(self, work: RankRequest) -> int:
        """Tokens of a waiting request that need not be computed."""
        chunks, size, computed = work.chunks, work.request.chunk_size, self._computed
        if not chunks or chunks[0] not in computed:
            return 0
        whole = bisect_left(
            range(len(chunks)),
            True,
            key=lambda index: computed.get(chunks[index], 0) < (index + 1) * size,
        )
        tokens = whole * size
        if whole < len(chunks):
            tokens = max(tokens, computed.get(chunks[whole], 0))
        return BLOCK_SIZE * min(tokens // BLOCK_SIZE, work.most_hits)

    def left(self, work: RankRequest) -> int:
        """Tokens to compute of a request that has just come."""
        return work.num_tokens - self._hits(work)

    def start(self, work: RankRequest) -> bool:
        """Lets a waiting request find what is cached of it."""
        work.num_computed_tokens = self._hits(work)
        return True

    def computed(self, work: RankRequest) -> None:
        """Some of a prompt is computed by the step that is being scheduled."""
        size, tokens = work.request.chunk_size, work.num_computed_tokens
        for end, chunk in enumerate(work.chunks, start=1):
            if tokens <= (end - 1) * size:
                break
            reached = min(tokens, end * size)
            self._computed[chunk] = max(reached, self._computed.get(chunk, 0))

    def take(self, work: RankRequest, count: int) -> None:
        """There are always more."""

    def release(self, work: RankRequest) -> None:
        """There are always more."""

    def needs(
        self, works: Sequence[RankRequest], room: int
    ) -> Iterator[tuple[int, int]]:
        """What the gate expects of waiting requests, once after each step."""
        return ((0, self._hits(work)) for work in works)


class CachedBlocks(Blocks):
    """Blocks as vLLM's block pool keeps them, for prompts that share beginnings.

    A block that is full has a key, by which later requests find it, until it is taken
    for something else: first those that were never used, then the one that is free for
    the longest time. Of a request's blocks the last is freed first. Equal blocks are
    not merged; the first of them is found.
    """

    def __init__(self, count: int, async_scheduling: bool) -> None:
        """Makes empty blocks.

        Args:
            count: how many.
            async_scheduling: whether a step is scheduled before the last has ended.
        """
        super().__init__(count)
        self._unused = count
        self._queue: OrderedDict[Block, None] = OrderedDict()
        """Free blocks that were used, the next to be taken first."""
        self._cached: dict[Key, list[Block]] = {}
        self._chunks = Chunks()
        # With asynchronous scheduling a block is cached once its last token is known.
        self._unknown = int(async_scheduling)
        self._found = FoundPrefixes(self._cached)

    def add(self, work: RankRequest) -> None:
        """A request has come to wait."""
        work.keys = self._keys(work.request)

    def _keys(self, request: SimRequest) -> list[Key]:
        chunk_size, chunks = request.chunk_size, self._chunks.of(request)
        shared = min(request.prompt_len, len(chunks) * chunk_size) // BLOCK_SIZE
        full = (request.prompt_len + request.output_len) // BLOCK_SIZE
        return [
            (chunks[((index + 1) * BLOCK_SIZE - 1) // chunk_size], index)
            for index in range(shared)
        ] + [(-1 - request.index, index) for index in range(shared, full)]

    def left(self, work: RankRequest) -> int:
        """Tokens to compute of a request that has just come."""
        return work.num_tokens - BLOCK_SIZE * self._found.count(work)

    def start(self, work: RankRequest) -> bool:
        """Lets a waiting request find what is cached of it, if all of it fits."""
        hits: list[Block] = []
        for key in islice(work.keys, work.most_hits):
            blocks = self._cached.get(key)
            if blocks is None:
                break
            hits.append(blocks[0])
        revived = [block for block in hits if not block.uses]
        if blocks_of(work.num_tokens) - len(hits) + len(revived) > self.free:
            return False
        for block in revived:
            del self._queue[block]
        self.free -= len(revived)
        for block in hits:
            block.uses += 1
        work.blocks, work.num_cached_blocks = hits, len(hits)
        work.num_computed_tokens = len(hits) * BLOCK_SIZE
        return True

    def take(self, work: RankRequest, count: int) -> None:
        """Gives a request so many free blocks more."""
        self.free -= count
        work.blocks += [self._next() for _ in range(count)]

    def take_one_each(self, works: Iterable[RankRequest], count: int) -> None:
        """Gives a free block more to each of the requests, `count` in all."""
        for work in works:
            self.take(work, 1)

    def _next(self) -> Block:
        if self._unused:
            self._unused -= 1
            return Block()
        block, _ = self._queue.popitem(last=False)
        block.uses = 1
        if block.key is not None:
            alike = self._cached[block.key]
            alike.remove(block)
            if not alike:
                del self._cached[block.key]
            block.key = None
        return block

    def computed(self, work: RankRequest) -> None:
        """Some of a prompt is computed by the step that is being scheduled."""
        self._cache(work, work.num_computed_tokens)

    def _cache(self, work: RankRequest, tokens: int) -> None:
        full = tokens // BLOCK_SIZE
        for index in range(work.num_cached_blocks, full):
            block = work.blocks[index]
            block.key = work.keys[index]
            self._cached.setdefault(block.key, []).append(block)
        work.num_cached_blocks = max(work.num_cached_blocks, full)

    def release(self, work: RankRequest) -> None:
        """Takes back the blocks of a request, which hold its computed tokens."""
        # Blocks of its answer: until now, nobody else could have found them.
        self._cache(work, work.num_computed_tokens - self._unknown)
        for block in reversed(work.blocks):
            block.uses -= 1
            if not block.uses:
                self._queue[block] = None
                self.free += 1
        work.blocks, work.num_cached_blocks = [], 0

    def needs(
        self, works: Sequence[RankRequest], room: int
    ) -> Iterator[tuple[int, int]]:
        """What the gate expects of waiting requests, once after each step."""
        hits = self._found.of_each(works)
        if sum([blocks_of(work.num_tokens) for work in works]) <= room:
            pairs = zip(works, hits, strict=True)
            return ((blocks_of(work.num_tokens), hit.tokens) for work, hit in pairs)
        return self._exact_needs(works, hits)

    def _exact_needs(
        self, works: Sequence[RankRequest], hits: Iterator[Hit]
    ) -> Iterator[tuple[int, int]]:
        """Cached blocks that are free count, too, each for the first that finds it."""
        revived: set[Block] = set()
        for work, hit in zip(works, hits, strict=True):
            unused = set(self._found.unused(work, hit)) - revived
            revived |= unused
            new = max(0, blocks_of(work.num_tokens) - hit.blocks)
            yield new + len(unused), hit.tokens
