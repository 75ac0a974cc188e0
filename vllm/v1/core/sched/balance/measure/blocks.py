# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Whether requests fit in the KV cache, counted with upstream's own functions."""

import sys
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from vllm.v1.core.sched.balance.measure.prefix_hits import Hit, PrefixHits
from vllm.v1.core.sched.balance.measure.releases import (
    blocks_to_allocate,
    long_prefill_threshold,
    looks_past_preempted,
)
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


EXACT_COUNTS = 8
"""Requests that are counted exactly in one step, if upstream must be asked."""


class FreeBlocks:
    """Counts down the free blocks as one request after the other would take its own.

    While there is plenty of room, a request counts with all blocks of its prompt. When
    that does not fit, it and those before it, one by one, count with what upstream
    would allocate: without the blocks that other requests use, and with those that are
    cached but could be evicted, each of them once.

    With one group of full attention that is counted here, else upstream is asked, for
    at most `EXACT_COUNTS` requests in a step.
    """

    def __init__(self, scheduler: "Scheduler", hits: PrefixHits, budget: int) -> None:
        """Starts with what is free now.

        Args:
            scheduler: the rank's.
            hits: what requests find in the KV cache.
            budget: prompt tokens that fit in the next step.
        """
        self.budget = budget
        self._scheduler = scheduler
        self._hits = hits
        self._cache = scheduler.kv_cache_manager.coordinator
        self._managers = self._cache.single_type_managers
        self._sizes = [manager.block_size for manager in self._managers]
        self._windows = [
            manager
            for manager in self._managers
            if not isinstance(manager, FullAttentionManager)
        ]
        self._one_full_attention = len(self._managers) == 1 and not self._windows
        self._nothing = scheduler.kv_cache_manager.empty_kv_cache_blocks.blocks
        self._ahead = scheduler.num_lookahead_tokens
        self._free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        per_decode = 1 - (-self._ahead // scheduler.block_size)
        self._roomy = self._free - (
            len(self._managers) * len(scheduler.running) * per_decode
        )
        self.most_left = self._roomy
        """Free blocks beside those of the requests that were taken, at least."""
        self.tight = False
        """Whether that was not enough once."""
        self._inexact: deque[tuple[Request, int, Hit | None, int]] = deque()
        """Requests that were taken with all their blocks."""
        self._exact_left = sys.maxsize if self._one_full_attention else EXACT_COUNTS
        self._revived: set[int] = set()

    def preempted(self) -> set[Request]:
        """Running requests that upstream would preempt, and then admit nothing."""
        running = self._scheduler.running
        chunks = [request for request in running if request.is_prefill_chunk]
        if self._roomy >= sum(map(self._most, chunks)):
            return set()
        needs = {request: self._growth(request) for request in running}
        if max(accumulate(needs.values()), default=0) <= self._free:
            return set()
        return self._preempted(needs)

    def take_all(self, totals: Sequence[int]) -> bool:
        """Takes all blocks of prompts, if there is plenty of room; else none.

        Args:
            totals: tokens of each prompt.
        """
        count = len(totals)
        tokens = sum(totals) + count * self._ahead
        most = sum([tokens // size + 3 * count for size in self._sizes])
        if self.tight or most > self.most_left:
            return False
        self.most_left -= most
        return True

    def take(self, request: Request, computed: int, hit: Hit | None) -> bool:
        """Takes the blocks of a prompt; False if it does not fit.

        Args:
            request: the next in turn, also one in progress.
            computed: its tokens that need not be computed.
            hit: what it finds in the KV cache, if it has computed nothing.
        """
        most = self._most(request)
        self.most_left -= most
        self._inexact.append((request, computed, hit, most))
        if self.most_left >= 0:
            return True
        if not self.tight:
            self.tight = True
            self.most_left += (
                self._free
                - self._roomy
                - sum(
                    self._growth(decode)
                    for decode in self._scheduler.running
                    if not decode.is_prefill_chunk
                )
            )
        while self.most_left < 0 and self._inexact and self._exact_left > 0:
            self._exact_left -= 1
            earlier, tokens, found, counted = self._inexact.popleft()
            self.most_left += counted - self._need(earlier, tokens, found)
        return self.most_left >= 0

    def _most(self, request: Request) -> int:
        tokens = request.num_tokens + self._ahead
        most = 0
        for size in self._sizes:
            most += 2 - (-tokens // size)
        return most

    def _need(self, request: Request, computed: int, hit: Hit | None) -> int:
        need = self._exact(request, hit, computed)
        if hit is None or request.num_computed_tokens:
            return need - self._left_behind(request)
        for block in self._hits.unused(request, hit):
            again = block.block_id in self._revived
            need += self._one_full_attention - again
            self._revived.add(block.block_id)
        return need

    def _exact(self, request: Request, hit: Hit | None, computed: int) -> int:
        """Blocks of the prompt that are not allocated.

        Of the whole prompt, or of its first part if upstream asks for no more.
        """
        scheduler = self._scheduler
        tokens = min(request.num_tokens, scheduler.max_model_len)
        known = computed - request.num_computed_tokens
        part = min(max(self.budget, 1), tokens - computed)
        first = computed + self._cut(request, part, known)
        ahead = min(first + self._ahead, scheduler.max_model_len)
        need = self._count(request, ahead, hit, computed, first, False)
        if scheduler.scheduler_reserve_full_isl:
            need = max(need, self._count(request, tokens, hit, computed, tokens, True))
        return need

    def _cut(self, request: Request, tokens: int, known: int = 0) -> int:
        """What upstream runs of so many tokens, which a Mamba layer wants aligned.

        Args:
            request: a prompt, or a request that decodes.
            tokens: what the step has room for.
            known: tokens that need not be computed, beside those that were.
        """
        if not self._scheduler.need_mamba_block_aligned_split:
            return tokens
        cut: int = self._scheduler._mamba_block_aligned_split(request, tokens, known)
        return cut

    def _count(
        self,
        request: Request,
        tokens: int,
        hit: Hit | None,
        computed: int,
        main: int,
        capped: bool,
    ) -> int:
        if self._one_full_attention:
            (manager,) = self._managers
            has = len(manager.req_to_blocks.get(request.request_id, ()))
            if hit:
                has += hit.tokens // manager.block_size
            return max(0, -(-tokens // manager.block_size) - has)
        return blocks_to_allocate(
            self._cache,
            local_tokens=request.num_computed_tokens + (hit.tokens if hit else 0),
            request_id=request.request_id,
            num_tokens=tokens,
            new_computed_blocks=hit.blocks if hit else self._nothing,
            num_encoder_tokens=0,
            total_computed_tokens=computed,
            num_tokens_main_model=main,
            apply_admission_cap=capped,
        )

    def _growth(self, request: Request) -> int:
        """Free blocks that the next step of a running request takes.

        It is less than 0 if more blocks leave its window.
        """
        return self._needed(request) - self._left_behind(request)

    def _left_behind(self, request: Request) -> int:
        """Blocks of a running request that upstream frees when it schedules it.

        Only it uses them, and no window of attention will reach them again; nor needs
        a Mamba layer its state of two steps ago.
        """
        computed, left = request.num_computed_tokens, {}
        for manager in self._windows:
            tokens = manager.get_num_skipped_tokens(computed)
            blocks = manager.req_to_blocks.get(request.request_id, ())
            for block in reversed(blocks[: tokens // manager.block_size]):
                if block.is_null:
                    break
                left[block.block_id] = block
            state = getattr(manager, "last_state_block_idx", {}).get(request.request_id)
            if state is not None and state < -(-computed // manager.block_size) - 1:
                left[blocks[state].block_id] = blocks[state]
        return sum(block.ref_cnt == 1 and not block.is_null for block in left.values())

    def _needed(self, request: Request) -> int:
        scheduler = self._scheduler
        computed = request.num_computed_tokens
        tokens = request.num_tokens_with_spec + request.num_output_placeholders
        new = min(tokens - computed, max(self.budget, 1))
        threshold = long_prefill_threshold(scheduler)
        if 0 < threshold < new:
            new = threshold
        new = self._cut(request, min(new, scheduler.max_model_len - 1 - computed))
        if new <= 0:
            return 0
        most = min(computed + new + self._ahead, scheduler.max_model_len)
        allocated = [
            len(manager.req_to_blocks.get(request.request_id, ()))
            for manager in self._managers
        ]
        if all(
            -(-most // manager.block_size) <= number
            for manager, number in zip(self._managers, allocated, strict=True)
        ):
            return 0
        return self._count(request, most, None, computed, computed + new, False)

    def _preempted(self, needs: dict[Request, int]) -> set[Request]:
        """Those that upstream preempts: from the end, or of the least priority."""
        running = list(self._scheduler.running)
        by_priority = self._scheduler.policy == SchedulingPolicy.PRIORITY
        free, preempted, index = self._free, set(), 0
        while index < len(running):
            request = running[index]
            while needs[request] > free:
                victim = running[-1]
                if by_priority:
                    victim = max(running, key=lambda r: (r.priority, r.arrival_time))
                if running.index(victim) < index:
                    index -= 1
                    free += needs[victim]
                running.remove(victim)
                preempted.add(victim)
                free += sum(
                    block.ref_cnt == 1 and not block.is_null
                    for blocks in self._cache.get_blocks(victim.request_id)
                    for block in blocks
                )
                if victim is request:
                    break
            else:
                free -= needs[request]
                index += 1
                continue
            if not (by_priority and looks_past_preempted(self._scheduler)):
                return preempted | set(running[index:])
        return preempted
