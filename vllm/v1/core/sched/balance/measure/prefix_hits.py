# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Which blocks of waiting prompts are in the KV cache already, without touching it."""

from bisect import bisect_left
from collections.abc import Container, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.v1.core.sched.balance.measure.vllm_compat import dropping_groups
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

SEARCHES = 8
"""Prompts that are searched for in one step, besides the first, and those for which
upstream is asked. The others keep what was found before, at first nothing."""
ALWAYS, EVERY = SEARCHES // 2, SEARCHES
"""The first requests in the queue are looked at in each step; of those behind them, one
in `EVERY`."""
AT_A_TIME = 2 * SEARCHES
"""Prompts that are looked up together."""
SEARCHED_BLOCKS = 128
"""Blocks that searches may walk in one step; with several groups they walk all blocks
of a hit."""


class Hit(NamedTuple):
    """What the KV cache had of a request when it was searched."""

    tokens: int
    """Prompt tokens that need not be computed."""
    blocks: tuple[Sequence[Any], ...]
    """Their blocks, for each group of the KV cache; with one group of full attention
    only the last."""
    found: int
    """Blocks of the prompt that were there. With speculation by EAGLE upstream drops
    the last of them from the hit."""
    marks: list[Any]
    """Blocks that are there only if all are."""
    hashes: list[Any]
    """The hashes that these had."""
    walked: dict[int, tuple[Any, Any]]
    """Blocks by their number in the prompt, as far as they were looked at, and the
    hashes that they had."""


class PrefixHits:
    """Searches prefixes as upstream does, and remembers what it found.

    A search neither counts in upstream's statistics nor changes the order in which
    blocks are evicted. Since blocks are evicted from the end of a prompt, the end of a
    hit is found by halving, and two looks there tell whether it still holds. Only
    without a group of full attention does that take upstream's whole search.

    What is said of the first requests in turn is true in each step. What is said of the
    others is up to `EVERY` steps old, or more where more new ones come in a step than
    `SEARCHES`, so that the time for it is bounded.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        manager = scheduler.kv_cache_manager
        self._cache = manager.coordinator
        self._has_block = self._cache.block_pool.get_cached_block
        self._enabled = manager.enable_caching
        self._nothing = Hit(0, manager.empty_kv_cache_blocks.blocks, 0, [], [], {})
        managers = self._cache.single_type_managers
        self._full = [isinstance(each, FullAttentionManager) for each in managers]
        self._size = managers[0].block_size if self._full == [True] else 0
        self._dropping = sorted(dropping_groups(self._cache))
        # Only there upstream looks further than the last block that can be hit.
        self._beyond = bool(self._dropping) and not self._size
        self._can_tell = self._enabled and any(self._full)
        if self._can_tell:
            self._full_group = self._full.index(True)
            self._full_size = managers[self._full_group].block_size
            if len(managers) > 1:
                self._can_tell = self._full_size == self._cache.hash_block_size
        self._found: dict[str, Hit] = {}
        self._next: dict[str, Hit] = {}
        self._step = 0
        self._last, self._last_hash = self._nothing, None

    def begin_step(self) -> None:
        """Forgets the requests that were not asked for since the last call."""
        self._found, self._next = self._next, {}
        self._step += 1
        self._held: Hit | None = None  # the last that was seen to be there
        self._searches = SEARCHES
        self._blocks = SEARCHED_BLOCKS

    def of_each(self, requests: Sequence[Request]) -> Iterator[Hit]:
        """What the KV cache has of requests; not to be asked of those that began.

        Args:
            requests: in their turn. They are looked up a few at a time, as far as the
                caller goes on.
        """
        if not self._enabled:
            return repeat(self._nothing, len(requests))
        starts = range(0, len(requests), AT_A_TIME)
        return chain.from_iterable(map(partial(self._look_up, requests), starts))

    def _look_up(self, requests: Sequence[Request], start: int) -> list[Hit]:
        requests = requests[start : start + AT_A_TIME]
        names = [request.request_id for request in requests]
        hits = list(map(self._found.get, names))
        for index, hit in enumerate(hits, start):
            if index and (self._searches <= 0 or self._blocks <= 0):
                break
            request = requests[index - start]
            if hit is None or (
                (index < ALWAYS or (index - ALWAYS - self._step) % EVERY == 0)
                and not self._still_holds(request, hit)
            ):
                hits[index - start] = self._search(request, charged=index > 0)
        looked_up = zip(names, hits, strict=True)
        self._next.update({name: hit for name, hit in looked_up if hit is not None})
        return [self._nothing if hit is None else hit for hit in hits]

    def all_hold(self, requests: Sequence[Request]) -> bool:
        """Whether these have what they had in the last step, as far as is looked at.

        Args:
            requests: all that were asked for then; if so, none need be asked for now.
        """
        if not self._enabled:
            return True
        found, count = self._found, len(requests)
        if len(found) != count:
            return False
        looked_at = chain(
            range(min(ALWAYS, count)), range(ALWAYS + self._step % EVERY, count, EVERY)
        )
        for index in looked_at:
            request = requests[index]
            hit = found.get(request.request_id)
            if hit is None or not self._still_holds(request, hit):
                return False
        self._next = found
        return True

    def unused(
        self, request: Request, hit: Hit, freed: Container[int], room: int
    ) -> Iterator[Any]:
        """Those blocks of a hit that no request uses: upstream could evict them.

        Args:
            request: the request.
            hit: what was found of it.
            freed: numbers of blocks that those who use them are about to give up.
            room: how many there may be. It is looked further than to the last that is
                used only while there could be more, or fewer. Mostly who uses a block
                uses those before it, too, but it may use a copy of them.
        """
        if not self._size:
            for block in chain.from_iterable(hit.blocks):
                if (not block.ref_cnt or block.block_id in freed) and not block.is_null:
                    yield block
            return
        hashes, walked = request.block_hashes, hit.walked
        for index in reversed(range(hit.tokens // self._size)):
            block, key = walked.get(index, (None, None))
            if block is None or block.block_hash is not key:  # it was evicted since
                block = next(iter(self._block(hashes, index + 1, 0)), None)
                walked[index] = block, block and block.block_hash
            if block is not None and not block.ref_cnt:
                room -= 1
                yield block
            elif not 0 <= room < index:
                return

    def _search(self, request: Request, charged: bool) -> Hit:
        if _reads_nothing(request):
            return self._nothing
        self._searches -= charged
        if self._shares_last(request):
            return self._last
        hashes = request.block_hashes
        if self._size:
            found, count = self._count(request)
            marks = self._block(hashes, found, 0)
            last = marks if count == found else self._block(hashes, count, 0)
            blocks = (last,) if last else self._nothing.blocks
            hit = _hit(count * self._size, blocks, found, marks)
        else:
            # From 0.30 on there is a third value, of which we need nothing.
            blocks, tokens = self._cache.find_longest_cache_hit(
                hashes, request.num_tokens - 1
            )[:2]
            self._blocks -= charged * (1 + sum(map(len, blocks)))
            hit = self._marked(hashes, blocks, tokens)
        if self._can_tell and hit.found:
            self._last, self._last_hash = hit, hashes[hit.found - 1]
        return hit

    def _marked(
        self, hashes: Sequence[Any], blocks: tuple[Sequence[Any], ...], tokens: int
    ) -> Hit:
        """The hit that upstream found in several groups, with its marks."""
        if not self._can_tell:
            return _hit(tokens, blocks, 0, [])
        found = tokens // self._full_size
        marks = [
            block
            for full, group in zip(self._full, blocks, strict=True)
            for block in (group[-1:] if full else group)
            if not block.is_null
        ]
        if self._dropping:
            dropped = self._block(hashes, found + 1, self._full_group)
            found += bool(dropped)
            for group in self._dropping:
                marks += self._block(hashes, found, group)
        return _hit(tokens, blocks, found, marks)

    def _block(self, hashes: Sequence[Any], number: int, group: int) -> list[Any]:
        """The block of a group with that number in a prompt, if it is cached."""
        if not 0 < number <= len(hashes):
            return []
        return self._has_block(hashes[number - 1], [group]) or []

    def _shares_last(self, request: Request) -> bool:
        """Whether a request has the prefix that was found last, and no longer one.

        The hash of a block is that of all tokens before it, too.
        """
        last, hashes = self._last, request.block_hashes
        return (
            0 < last.found <= len(hashes)
            and hashes[last.found - 1] == self._last_hash
            and last.found <= (request.num_tokens - 1) // self._full_size
            and self._still_holds(request, last)
        )

    def _count(self, request: Request) -> tuple[int, int]:
        """Blocks that are there, and those of them that upstream does not drop."""
        hashes = request.block_hashes
        end = min(len(hashes), (request.num_tokens - 1) // self._size)
        if end == 0 or not self._has_block(hashes[0], [0]):
            return 0, 0
        found = bisect_left(
            range(end), True, key=lambda index: not self._has_block(hashes[index], [0])
        )
        return found, max(0, found - len(self._dropping))

    def _still_holds(self, request: Request, hit: Hit) -> bool:
        """Whether the hit is there, and no longer one could be."""
        if not self._can_tell:
            return _reads_nothing(request)
        if hit is not self._held:
            if [block.block_hash for block in hit.marks] != hit.hashes:
                return False
            self._held = hit
        hashes, after = request.block_hashes, hit.found
        return (
            after >= len(hashes)
            or not self._has_block(hashes[after], [self._full_group])
            or after >= (request.num_tokens - 1) // self._full_size + self._beyond
            or _reads_nothing(request)
        )


def _hit(
    tokens: int, blocks: tuple[Sequence[Any], ...], found: int, marks: list[Any]
) -> Hit:
    hashes = [block.block_hash for block in marks]
    return Hit(tokens, blocks, found, marks, hashes, {})


def _reads_nothing(request: Request) -> bool:
    """Whether upstream would not look a request up."""
    return bool(request.skip_reading_prefix_cache or request.num_computed_tokens)
