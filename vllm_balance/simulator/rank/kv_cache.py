# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A rank's KV cache: blocks of which some are free, or as many as it takes."""

import sys
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable

from ..requests.request import SimRequest
from .limits import BLOCK_SIZE, RankLimits, blocks_of
from .request import Piece, RankRequest


class Blocks:
    """Blocks of which only the number matters: no prompt shares its beginning."""

    are_received = False
    """Whether prompts come with their KV cache."""

    def __init__(self, limits: RankLimits) -> None:
        count = limits.kv_blocks
        self.free = sys.maxsize if count is None else count - 1  # vLLM's null block
        """Blocks that no request uses."""
        self._total = self.free
        self.is_limited = count is not None
        """Whether they can be used up."""
        self.ahead = limits.num_speculative_tokens
        """Tokens for which a request that is scheduled needs room beside its own."""
        self._grown = 0
        """What answers use beside the blocks of their prompts."""

    @property
    def usage(self) -> float:
        """Share of the blocks that requests use, as vLLM's statistics have it."""
        return 1 - self.free / self._total

    def add(self, work: RankRequest) -> None:
        """A request has come to wait."""

    def start(self, work: RankRequest, clip: Callable[[], int]) -> int:
        """Lets a waiting request find what is cached of it, if all of it fits.

        Args:
            work: the request.
            clip: the tokens that are computed first of it, once it knows what it found.

        Returns:
            These tokens, or 0 if it does not fit.
        """
        tokens = clip()
        return tokens if self._most(work, tokens) <= self.free else 0

    def _most(self, work: RankRequest, computed: int) -> int:
        """Blocks that a request uses once this number of tokens is computed, or all."""
        return max(blocks_of(work.num_tokens), blocks_of(computed + self.ahead))

    def found(self, work: RankRequest) -> tuple[int, int]:
        """Tokens that are cached of a request that waits, and their blocks in use."""
        return 0, 0

    def grow(self, count: int) -> bool:
        """Lets all answers use so many blocks; False if there are not as many."""
        free = self.free + self._grown - count
        if free < 0:
            return False
        self.free, self._grown = free, count
        return True

    def take(self, work: RankRequest, count: int) -> None:
        """Gives a request more free blocks."""
        self.free -= count
        work.num_blocks += count

    def computed(self, work: RankRequest) -> None:
        """Some of a prompt is computed by the step that is being scheduled."""

    def release(self, work: RankRequest) -> None:
        """Takes back the blocks of a request, which hold its computed tokens."""
        self.free += work.num_blocks
        work.num_blocks = 0


class ReceivedBlocks(Blocks):
    """Those of a decode instance, to which prompts come with their KV cache.

    The last token of a prompt is computed, and all after a preemption. Blocks that
    prompts could share are counted for each.
    """

    are_received = True

    def start(self, work: RankRequest, clip: Callable[[], int]) -> int:
        """Lets a waiting request have its prompt, if all of it fits."""
        if not work.preempted:
            work.num_computed_tokens = work.num_tokens - 1
        tokens = super().start(work, clip)
        if not tokens:
            work.num_computed_tokens = 0
        return tokens


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


class CachedBlocks(Blocks):
    """Blocks of prompts that share beginnings, chunk by chunk.

    A chunk is found by later requests from when all of it is computed until its blocks
    are taken for something else: first those that hold nothing, then those that are
    free for the longest time, of a request the last first. vLLM does so block by block,
    finds what a preempted request has computed itself, and merges nothing; here, who
    computes a chunk that another has in use keeps that in use, too.
    """

    def __init__(self, limits: RankLimits) -> None:
        super().__init__(limits)
        self._pieces: dict[int, Piece] = {}
        """Of the chunks that are found, by number. If one is, so are those before it,
        and if one is in use, so are they."""
        self._idle: OrderedDict[Piece, None] = OrderedDict()
        """What is cached in free blocks, the next to be taken first."""
        self._num_idle = 0
        """Blocks of these."""
        self._chunks = Chunks()

    def add(self, work: RankRequest) -> None:
        """A request has come to wait."""
        chunks = work.chunks = self._chunks.of(work.request)
        if work.request.has_cached and chunks and chunks[-1] not in self._pieces:
            for index, chunk in enumerate(chunks):
                # It uses no block until somebody uses it.
                self._pieces.setdefault(chunk, Piece(work.chunk_blocks(index), chunk))

    def start(self, work: RankRequest, clip: Callable[[], int]) -> int:
        """Lets a waiting request find what is cached of it, if all of it fits."""
        work.num_computed_tokens, used = self.found(work)
        tokens = clip()
        most = self._most(work, work.num_computed_tokens + tokens)
        if most - used > self.free:
            work.num_computed_tokens = 0
            return 0
        count = self._num_found(work)
        work.pieces = [self._pieces[chunk] for chunk in work.chunks[:count]]
        work.num_blocks = work.num_shared = work.blocks_before(count)
        for piece in work.pieces:
            self._use(piece)
        self._evict()
        return tokens

    def _num_found(self, work: RankRequest) -> int:
        """Chunks of it that are cached."""
        pieces = self._pieces
        return bisect_left(work.chunks, True, key=lambda chunk: chunk not in pieces)

    def found(self, work: RankRequest) -> tuple[int, int]:
        """Tokens that are cached of a request that waits, and their blocks in use."""
        pieces, count = self._pieces, self._num_found(work)
        if not count:
            return 0, 0
        used = bisect_left(
            work.chunks, True, hi=count, key=lambda chunk: not pieces[chunk].users
        )
        # The last token is computed, and before drafts another block.
        blocks = min(work.blocks_before(count), (work.num_tokens - 1) // BLOCK_SIZE)
        blocks = max(0, blocks - (self.ahead > 0))
        return blocks * BLOCK_SIZE, work.blocks_before(used)

    def _use(self, piece: Piece) -> None:
        """One request more does; its blocks are not free."""
        if not piece.users:
            self.free -= piece.blocks
            self._take_from_idle(piece)
        piece.users += 1

    def _take_from_idle(self, piece: Piece) -> None:
        if piece in self._idle:
            del self._idle[piece]
            self._num_idle -= piece.blocks

    def take(self, work: RankRequest, count: int) -> None:
        """Gives a request more free blocks."""
        super().take(work, count)
        self._evict()

    def grow(self, count: int) -> bool:
        """Lets all answers use so many blocks; False if there are not as many."""
        fits = super().grow(count)
        self._evict()
        return fits

    def _evict(self) -> None:
        while self._num_idle > self.free and self._idle:
            piece, _ = self._idle.popitem(last=False)
            self._num_idle -= piece.blocks
            self._pieces.pop(piece.chunk, None)

    def computed(self, work: RankRequest) -> None:
        """Some of a prompt is computed by the step that is being scheduled."""
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
        """Takes back the blocks of a request, which hold its computed tokens."""
        self.free += work.num_blocks - work.num_shared
        # Nobody finds them, but they are taken in their turn.
        own = blocks_of(work.num_computed_tokens) - work.num_shared
        if own > 0:
            self._leave(Piece(own))
        for piece in reversed(work.pieces):
            piece.users -= 1
            if not piece.users:
                self.free += piece.blocks
                self._leave(piece)
        work.pieces, work.num_blocks, work.num_shared = [], 0, 0

    def _leave(self, piece: Piece) -> None:
        self._idle[piece] = None
        self._num_idle += piece.blocks
