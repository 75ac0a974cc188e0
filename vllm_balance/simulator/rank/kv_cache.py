# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A rank's KV cache: a limited or unlimited number of blocks."""

import sys
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable

from ..requests.request import SimRequest
from .limits import BLOCK_SIZE, RankLimits, blocks_of
from .request import Piece, RankRequest


class Blocks:
    """Blocks of prompts without shared prefixes, which are only counted."""

    are_received = False
    """Whether prompts come with their KV cache."""

    def __init__(self, limits: RankLimits) -> None:
        count = limits.kv_blocks
        self.free = sys.maxsize if count is None else count - 1  # vLLM's null block
        """Blocks that no request uses."""
        self._total = self.free
        self.is_limited = count is not None
        """Whether the number of blocks is limited."""
        self.ahead = limits.num_speculative_tokens
        """Look-ahead tokens for which a scheduled request needs room."""
        self._grown = 0
        """Blocks that answers use beside those of their prompts."""

    @property
    def usage(self) -> float:
        """Share of the blocks that requests use, as vLLM's statistics have it."""
        return 1 - self.free / self._total

    def add(self, work: RankRequest) -> None:
        """Notes a request that joins the queue."""

    def start(self, work: RankRequest, clip: Callable[[], int]) -> int:
        """Gives a waiting request its cached blocks, if its whole prompt fits.

        Args:
            work: the request.
            clip: returns the tokens to compute first, after the cache lookup.

        Returns:
            These tokens, or 0 if the prompt does not fit.
        """
        tokens = clip()
        return tokens if self._needed_blocks(work, tokens) <= self.free else 0

    def _needed_blocks(self, work: RankRequest, computed: int) -> int:
        """Blocks for the whole prompt, and for the look-ahead behind `computed`."""
        return max(blocks_of(work.num_tokens), blocks_of(computed + self.ahead))

    def lookup(self, work: RankRequest) -> tuple[int, int]:
        """Cached tokens of a waiting request, and their blocks that are in use."""
        return 0, 0

    def grow(self, count: int) -> bool:
        """Sets the blocks that all answers use; False if there are not enough."""
        free = self.free + self._grown - count
        if free < 0:
            return False
        self.free, self._grown = free, count
        return True

    def take(self, work: RankRequest, count: int) -> None:
        """Gives `count` free blocks to a request."""
        self.free -= count
        work.num_blocks += count

    def computed(self, work: RankRequest) -> None:
        """Notes that the step being scheduled computes a part of a prompt."""

    def release(self, work: RankRequest) -> None:
        """Frees the blocks of a request, which hold its computed tokens."""
        self.free += work.num_blocks
        work.num_blocks = 0


class ReceivedBlocks(Blocks):
    """Blocks of a decode instance, to which prompts come with their KV cache.

    Only the last token of a prompt is computed; after a preemption, all of them. Blocks
    that prompts could share are counted for each.
    """

    are_received = True

    def start(self, work: RankRequest, clip: Callable[[], int]) -> int:
        """Gives a waiting request blocks for its prompt, if all of it fits."""
        if not work.preempted:
            work.num_computed_tokens = work.num_tokens - 1
        tokens = super().start(work, clip)
        if not tokens:
            work.num_computed_tokens = 0
        return tokens


class Chunks:
    """Numbers the prefixes of prompts, chunk by chunk."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        """A chunk's number by that of the chunk before it and the hash id."""

    def of(self, request: SimRequest) -> list[int]:
        """A number for each chunk; equal numbers mean equal prefixes up to its end."""
        numbers, parent = [], 0
        for hash_id in request.hash_ids:
            next_number = len(self._numbers) + 1
            parent = self._numbers.setdefault((parent, hash_id), next_number)
            numbers.append(parent)
        return numbers


class CachedBlocks(Blocks):
    """Blocks of prompts with shared prefixes, chunk by chunk.

    Later requests find a chunk once all of it is computed, until its blocks are reused.
    Empty blocks are reused first, then those that have been free for the longest time,
    of one request the last ones first. vLLM does so block by block, finds what a
    preempted request has computed itself, and merges nothing; here, a request that
    computes a chunk that another one uses joins its users.
    """

    def __init__(self, limits: RankLimits) -> None:
        super().__init__(limits)
        self._pieces: dict[int, Piece] = {}
        """The cached chunks by number. With a chunk all those before it are cached, and
        in use if it is."""
        self._idle: OrderedDict[Piece, None] = OrderedDict()
        """Pieces in free blocks, in the order in which they are evicted."""
        self._num_idle = 0
        """Blocks of these pieces."""
        self._chunks = Chunks()

    def add(self, work: RankRequest) -> None:
        """Notes a request that joins the queue."""
        chunks = work.chunks = self._chunks.of(work.request)
        if work.request.has_cached and chunks and chunks[-1] not in self._pieces:
            for index, chunk in enumerate(chunks):
                # A piece uses no block until a request uses it.
                self._pieces.setdefault(chunk, Piece(work.chunk_blocks(index), chunk))

    def start(self, work: RankRequest, clip: Callable[[], int]) -> int:
        """Gives a waiting request its cached blocks, if its whole prompt fits."""
        work.num_computed_tokens, used = self.lookup(work)
        tokens = clip()
        needed = self._needed_blocks(work, work.num_computed_tokens + tokens)
        if needed - used > self.free:
            work.num_computed_tokens = 0
            return 0
        count = self._num_cached(work)
        work.pieces = [self._pieces[chunk] for chunk in work.chunks[:count]]
        work.num_blocks = work.num_shared = work.blocks_before(count)
        for piece in work.pieces:
            self._use(piece)
        self._evict()
        return tokens

    def _num_cached(self, work: RankRequest) -> int:
        """The number of its chunks that are cached."""
        pieces = self._pieces
        return bisect_left(work.chunks, True, key=lambda chunk: chunk not in pieces)

    def lookup(self, work: RankRequest) -> tuple[int, int]:
        """Cached tokens of a waiting request, and their blocks that are in use."""
        pieces, count = self._pieces, self._num_cached(work)
        if not count:
            return 0, 0
        used = bisect_left(
            work.chunks, True, hi=count, key=lambda chunk: not pieces[chunk].users
        )
        # The last token is computed, and with drafts a whole block before it.
        blocks = min(work.blocks_before(count), (work.num_tokens - 1) // BLOCK_SIZE)
        blocks = max(0, blocks - (self.ahead > 0))
        return blocks * BLOCK_SIZE, work.blocks_before(used)

    def _use(self, piece: Piece) -> None:
        """Adds a user; the first one takes the blocks out of the free ones."""
        if not piece.users:
            self.free -= piece.blocks
            self._take_from_idle(piece)
        piece.users += 1

    def _take_from_idle(self, piece: Piece) -> None:
        if piece in self._idle:
            del self._idle[piece]
            self._num_idle -= piece.blocks

    def take(self, work: RankRequest, count: int) -> None:
        """Gives `count` free blocks to a request."""
        super().take(work, count)
        self._evict()

    def grow(self, count: int) -> bool:
        """Sets the blocks that all answers use; False if there are not enough."""
        fits = super().grow(count)
        self._evict()
        return fits

    def _evict(self) -> None:
        while self._num_idle > self.free and self._idle:
            piece, _ = self._idle.popitem(last=False)
            self._num_idle -= piece.blocks
            self._pieces.pop(piece.chunk, None)

    def computed(self, work: RankRequest) -> None:
        """Notes that the step being scheduled computes a part of a prompt."""
        full, chunks = work.num_computed_tokens // BLOCK_SIZE, work.chunks
        index = len(work.pieces)
        while index < len(chunks) and work.blocks_before(index + 1) <= full:
            blocks, chunk = work.chunk_blocks(index), chunks[index]
            piece = self._pieces.get(chunk)
            if piece is None or not piece.users:
                if piece is not None:
                    self._take_from_idle(piece)
                piece = self._pieces[chunk] = Piece(blocks, chunk)
                work.num_shared += blocks
            piece.users += 1
            work.pieces.append(piece)
            index += 1

    def release(self, work: RankRequest) -> None:
        """Frees the blocks of a request, which hold its computed tokens."""
        self.free += work.num_blocks - work.num_shared
        # No request can find these, but they are evicted in their order.
        unshared = blocks_of(work.num_computed_tokens) - work.num_shared
        if unshared > 0:
            self._leave(Piece(unshared))
        for piece in reversed(work.pieces):
            piece.users -= 1
            if not piece.users:
                self.free += piece.blocks
                self._leave(piece)
        work.pieces, work.num_blocks, work.num_shared = [], 0, 0

    def _leave(self, piece: Piece) -> None:
        self._idle[piece] = None
        self._num_idle += piece.blocks
