# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A rank's KV cache: blocks of which some are free, or as many as it takes."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heappop, heappush

from ..requests.request import SimRequest
from .limits import BLOCK_SIZE, RankLimits, blocks_of
from .request import Key, RankRequest, Run, Source


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
        """What is cached of a request that waits: blocks, and those that are in use."""
        return 0, 0

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
    """Blocks as vLLM's block pool keeps them, for prompts that share beginnings.

    A block that is full has a key, by which later requests find it, until it is taken
    for something else: first those that were never used, then the one that is free for
    the longest time. Of a request's blocks the last is freed first. Equal blocks are
    not merged; the first of them is found. Prompts have thousands of blocks, so those
    that are used, cached and freed together are a `Run`.
    """

    def __init__(self, limits: RankLimits, async_scheduling: bool) -> None:
        super().__init__(limits)
        self._unused = self.free
        self._queue: list[tuple[int, int, Run]] = []
        """A heap of free runs, the next to be taken first: by when they were freed.
        Those that were taken out since are of another time."""
        self._pushed = 0
        self._cached: dict[Key, list[Run]] = {}
        self._chunks = Chunks()
        # With asynchronous scheduling a block is cached once its last token is known.
        self._unknown = int(async_scheduling)

    def add(self, work: RankRequest) -> None:
        """A request has come to wait."""
        request = work.request
        work.chunks = self._chunks.of(request)
        tokens = min(request.prompt_len, len(work.chunks) * request.chunk_size)
        work.shared_blocks = tokens // BLOCK_SIZE
        if request.has_cached:
            self._have(work)

    def _have(self, work: RankRequest) -> None:
        """Caches what a request shares, in blocks that nobody has computed."""
        end = work.shared_blocks
        if end and work.key(end - 1) not in self._cached:
            run = Run(Source(work), 0, end, end, [])
            self._cached.update({work.key(index): [run] for index in range(end)})

    def start(self, work: RankRequest, clip: Callable[[], int]) -> int:
        """Lets a waiting request find what is cached of it, if all of it fits."""
        found = self._hits(work)
        hits = found[-1][2] if found else 0
        work.num_computed_tokens = hits * BLOCK_SIZE
        tokens = clip()
        revived = sum(stop - start for run, start, stop in found if not run.users)
        most = self._most(work, work.num_computed_tokens + tokens)
        if most - hits + revived > self.free:
            work.num_computed_tokens = 0
            return 0
        self.free -= revived
        work.runs = [self._part(*each) for each in found]
        for run in work.runs:
            run.users.append(work)
            run.freed = 0
        work.source, work.num_cached_blocks, work.num_blocks = Source(work), hits, hits
        return tokens

    def found(self, work: RankRequest) -> tuple[int, int]:
        """What is cached of a request that waits: blocks, and those that are in use."""
        blocks = used = 0
        for run, start, stop in self._hits(work):
            blocks += stop - start
            used += stop - start if run.users else 0
        return blocks, used

    def _hits(self, work: RankRequest) -> list[tuple[Run, int, int]]:
        """What is found, of which a drafter computes the last block again."""
        found = list(self._find(work))
        if found and self.ahead:
            run, start, stop = found.pop()
            if start < stop - 1:
                found.append((run, start, stop - 1))
        return found

    def _find(self, work: RankRequest) -> Iterator[tuple[Run, int, int]]:
        """The runs that have its beginning, each with the first block and the end."""
        index, most = 0, work.most_hits
        while index < most and (runs := self._cached.get(work.key(index))):
            run, start = runs[0], index
            # The first block that is found at a place stays so at later places: whoever
            # brought others there first uses those before them, which are freed later.
            index = run.same_until(work, start, most)
            yield run, start, index

    def _part(self, run: Run, start: int, stop: int) -> Run:
        """Those blocks of a run as one of their own."""
        if stop < run.stop:
            run = self._split(run, stop)
        if start > run.start:
            front = self._split(run, start)
            if front.freed:
                self._push(front)
        return run

    def _split(self, run: Run, at: int) -> Run:
        """Takes the blocks before one out of a run; the others stay where they are."""
        head = replace(run, stop=at, cached=min(at, run.cached), users=[*run.users])
        for index in range(run.start, head.cached):
            runs = self._cached[run.source.key(index)]
            runs[runs.index(run)] = head
        for work in run.users:
            work.runs.insert(work.runs.index(run), head)
        run.start, run.cached = at, max(at, run.cached)
        return head

    def take(self, work: RankRequest, count: int) -> None:
        """Gives a request more free blocks."""
        if not count:
            return
        self.free -= count
        work.num_blocks += count
        self._evict(count)
        last = work.runs[-1] if work.runs else None
        if last is not None and last.source is work.source and len(last.users) == 1:
            last.stop += count
            return
        start = 0 if last is None else last.stop
        work.runs.append(Run(work.source, start, start + count, start, [work]))

    def _evict(self, count: int) -> None:
        """Makes free blocks empty, those that were never used first."""
        fresh = min(count, self._unused)
        self._unused -= fresh
        count -= fresh
        while count:
            freed, _, run = self._queue[0]
            if freed != run.freed or run.start == run.stop:
                heappop(self._queue)
                continue
            stop = max(run.start, run.stop - count)
            for index in range(stop, run.cached):
                key = run.source.key(index)
                runs = self._cached[key]
                runs.remove(run)
                if not runs:
                    del self._cached[key]
            count -= run.stop - stop
            run.stop, run.cached = stop, min(stop, run.cached)

    def computed(self, work: RankRequest) -> None:
        """Some of a prompt is computed by the step that is being scheduled."""
        self._cache(work, work.num_computed_tokens)

    def _cache(self, work: RankRequest, tokens: int) -> None:
        full = tokens // BLOCK_SIZE
        if full <= work.num_cached_blocks:
            return
        # What is cached since the start is followed by the rest, in one run.
        run = work.runs[-1]
        for index in range(work.num_cached_blocks, full):
            runs = self._cached.setdefault(work.key(index), [])
            runs.append(run)
            if len(runs) > 1:
                for each in runs:
                    each.has_equals = True
        run.cached = work.num_cached_blocks = full

    def release(self, work: RankRequest) -> None:
        """Takes back the blocks of a request, which hold its computed tokens."""
        # Blocks of its answer: until now, nobody else could have found them.
        self._cache(work, work.num_computed_tokens - self._unknown)
        for run in reversed(work.runs):
            run.users.remove(work)
            if not run.users:
                self.free += run.stop - run.start
                run.freed = self._pushed + 1
                self._push(run)
        work.runs, work.num_cached_blocks, work.num_blocks = [], 0, 0

    def _push(self, run: Run) -> None:
        self._pushed += 1
        heappush(self._queue, (run.freed, self._pushed, run))
