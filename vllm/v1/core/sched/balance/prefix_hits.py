# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Which blocks of waiting prompts are in the KV cache already, without touching it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

LOOKUP_BLOCKS = 512
"""Blocks of prompts that are looked up in one step; the rest keeps what was found."""


class Hit(NamedTuple):
    """What the KV cache had of a request when it was looked up."""

    tokens: int
    """Prompt tokens that need not be computed."""
    blocks: tuple[Sequence[Any], ...]
    """Their blocks, for each group of the KV cache."""
    last_hash: Any
    """Hash of the last of them, by which a look tells whether it is still there."""


class PrefixHits:
    """Looks prefixes up with upstream's own search, and remembers what it found.

    The search neither counts in upstream's statistics nor changes the order in which
    blocks are evicted. It walks all blocks of a hit, so at most `LOOKUP_BLOCKS` are
    walked in one step; what is left for later counts with what was found before, at
    first nothing. With one group of full attention, two looks at the end of a hit
    tell whether it still holds, because blocks are evicted from the end. With other
    groups every request is looked up again as its turn comes.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        manager = scheduler.kv_cache_manager
        self._cache = manager.coordinator
        self._enabled = manager.enable_caching
        self._nothing = Hit(0, manager.empty_kv_cache_blocks.blocks, None)
        managers = self._cache.single_type_managers
        self._one_full_attention = len(managers) == 1 and isinstance(
            managers[0], FullAttentionManager
        )
        self._dropped = len(self._cache.eagle_group_ids)
        self._found: dict[str, Hit] = {}
        self._next: dict[str, Hit] = {}
        self._blocks_left = 0

    def begin_step(self) -> None:
        """Forgets the requests that were not asked for since the last call."""
        # Those that come first next time were looked up longest ago.
        self._found, self._next = self._next, {}
        self._blocks_left = LOOKUP_BLOCKS

    def of(self, request: Request) -> Hit:
        """What the KV cache has of a request that has computed nothing."""
        if not self._enabled or request.skip_reading_prefix_cache:
            return self._nothing
        request_id = request.request_id
        hit = self._found.get(request_id)
        if hit is None or not self._still_holds(request, hit):
            hit = self._look_up(request) or hit or self._nothing
        self._next[request_id] = hit
        return hit

    def _look_up(self, request: Request) -> Hit | None:
        if self._blocks_left <= 0:
            return None
        # From 0.30 on there is a third value, of which we need nothing.
        blocks, tokens = self._cache.find_longest_cache_hit(
            request.block_hashes, request.num_tokens - 1
        )[:2]
        self._blocks_left -= 1 + sum(map(len, blocks))
        last = blocks[0][-1].block_hash if self._one_full_attention and tokens else None
        return Hit(tokens, blocks, last)

    def _still_holds(self, request: Request, hit: Hit) -> bool:
        if not self._one_full_attention:
            return False
        (blocks,) = hit.blocks
        if blocks and blocks[-1].block_hash != hit.last_hash:
            return False
        # With speculation by EAGLE, upstream drops the last block that it finds.
        hashes = request.block_hashes
        size = self._cache.single_type_managers[0].block_size
        after = len(blocks) + self._dropped
        if blocks and self._dropped and not self._has(hashes[len(blocks)]):
            return False
        end = min(len(hashes), (request.num_tokens - 1) // size)
        return after >= end or not self._has(hashes[after])

    def _has(self, block_hash: Any) -> bool:
        return self._cache.block_pool.get_cached_block(block_hash, [0]) is not None
