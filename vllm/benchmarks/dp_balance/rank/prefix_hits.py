# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the gate knows of the prompts in a rank's KV cache.

Models `prefix_hits` of `balance/measure`, which needs the real KV cache: what is said
of the first requests in turn is true, and what is said of the others may be some steps
old.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from .limits import BLOCK_SIZE
from .request import Key, RankRequest, Run, Source

# As they are there.
ALWAYS, EVERY = 4, 8
SEARCHES = 8
AT_A_TIME = 16


class Hit(NamedTuple):
    """What was cached of a request when it was searched."""

    blocks: int
    found: int
    """With speculation one more than those: upstream drops the last."""
    source: Source | None
    """Of the last that was found."""
    key: Key
    """The key that it had."""

    @property
    def tokens(self) -> int:
        """Tokens that need not be computed."""
        return self.blocks * BLOCK_SIZE


_NOTHING = Hit(0, 0, None, (0, 0))


class FoundPrefixes:
    """What the gate has found, and looks up again now and then."""

    def __init__(self, cached: Mapping[Key, Sequence[Run]], drops_last: bool) -> None:
        """Takes the rank's cached blocks; the gate has found nothing yet."""
        self._cached, self._drops_last = cached, drops_last
        self._found: dict[str, Hit] = {}
        self._next: dict[str, Hit] = {}
        self._step = 0
        self._searches = 0

    def of_each(self, works: Sequence[RankRequest]) -> Iterator[Hit]:
        """Begins a step, and returns what is said of waiting requests.

        Args:
            works: requests in their turn. They are looked up a few at a time, as far
                as the caller goes on.
        """
        self._found, self._next = self._next, {}
        self._step += 1
        self._searches = SEARCHES
        starts = range(0, len(works), AT_A_TIME)
        return chain.from_iterable(self._look_up(works, start) for start in starts)

    def _look_up(self, works: Sequence[RankRequest], start: int) -> list[Hit]:
        works = works[start : start + AT_A_TIME]
        hits = [self._found.get(work.name) for work in works]
        for index, (work, hit) in enumerate(zip(works, hits, strict=True), start):
            if index and self._searches <= 0:
                break
            if hit is None or (
                (index < ALWAYS or (index - ALWAYS - self._step) % EVERY == 0)
                and not self._still_holds(work, hit)
            ):
                hits[index - start] = self._search(work, charged=index > 0)
        for work, hit in zip(works, hits, strict=True):
            if hit is not None:
                self._next[work.name] = hit
        return [hit or _NOTHING for hit in hits]

    def _search(self, work: RankRequest, charged: bool) -> Hit:
        self._searches -= charged
        # Blocks are evicted from the end of a prompt.
        count = bisect_left(
            range(work.most_hits),
            True,
            key=lambda index: work.key(index) not in self._cached,
        )
        if not count:
            return _NOTHING
        key = work.key(count - 1)
        left = count - self._drops_last
        return Hit(left, count, self._cached[key][0].source, key)

    def _still_holds(self, work: RankRequest, hit: Hit) -> bool:
        """Whether the hit is there, and no longer one could be."""
        if hit.source is not None and not any(
            run.source is hit.source for run in self._cached.get(hit.key, ())
        ):
            return False
        end = hit.found
        return end >= work.most_hits or work.key(end) not in self._cached

    def unused(
        self, work: RankRequest, hit: Hit, room: int
    ) -> Iterator[tuple[Run, int, int]]:
        """Those blocks of a hit that no request uses: runs, their first one and end.

        Who uses a block uses those before it, too, or copies of them. With speculation
        it is looked past one that is used while there is not `room` for all before it.
        """
        end = hit.blocks
        while end:
            runs = self._cached.get(work.key(end - 1))
            start = end - 1
            if runs and not runs[0].users:
                if not runs[0].has_equals:
                    start = runs[0].start
                room -= end - start
                yield runs[0], start, end
            elif not (self._drops_last and 0 <= room < start):
                return
            end = start
