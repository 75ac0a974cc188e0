# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Whether requests fit in the KV cache, counted with upstream's own functions."""

import sys
from collections import Counter, deque
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.balance.measure.prefix_hits import SEARCHES, Hit, PrefixHits
from vllm.v1.core.sched.balance.measure.vllm_compat import (
    blocks_to_allocate,
    frees_past_gaps,
    long_prefill_threshold,
    looks_past_preempted,
    processed_tokens,
    step_room,
)
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

_MORE_BLOCKS = 3
"""Blocks that a request may take beside those that its tokens fill: one that is begun,
and two more to be sure."""


class FreeBlocks:
    """Counts down the free blocks as one request after the other would take its own.

    While there is plenty of room, a request counts with all blocks of its prompt. When
    that does not fit, it and those before it, one by one, count with what upstream
    would allocate: without the blocks that other requests use, and with those that are
    cached but could be evicted, each of them once.

    With one group of full attention that is counted here, else upstream is asked, for
    at most `SEARCHES` requests in a step.
    """

    def __init__(self, scheduler: "Scheduler", hits: PrefixHits) -> None:
        """Starts with what is free now.

        Args:
            scheduler: the rank's.
            hits: what requests find in the KV cache.
        """
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
        more = scheduler.num_spec_tokens + self._ahead
        per_decode = 1 + more // min(self._sizes, default=1)
        decodes = len(scheduler.running) * per_decode
        self._roomy = self._free - len(self._managers) * decodes
        self.most_left = self._roomy
        """Free blocks beside those of the requests that were taken, at least."""
        self.tight = False
        """Whether that was not enough once."""
        self._inexact: deque[tuple[Request, int, Hit | None, int]] = deque()
        """Requests that were taken with all their blocks."""
        self._exact_left = sys.maxsize if self._one_full_attention else SEARCHES
        self._revived: set[int] = set()
        self._first = True

    @property
    def any_budget(self) -> bool:
        """Whether `budget` is more than 0, mostly without counting it."""
        scheduler = self._scheduler
        most = len(scheduler.running) * (1 + scheduler.num_spec_tokens)
        return step_room(scheduler, most, len(scheduler.running)) > 0 or self.budget > 0

    @cached_property
    def budget(self) -> int:
        """Tokens that the next step has left for prompts, if decodes come first."""
        scheduler = self._scheduler
        decodes = [
            tokens_of(request, scheduler)
            for request in scheduler.running
            if not request.is_prefill_chunk
        ]
        return step_room(scheduler, sum(decodes), len(decodes))

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
        most = sum([tokens // size + _MORE_BLOCKS * count for size in self._sizes])
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
            self.most_left += counted
            self.most_left -= self._need(earlier, tokens, found)
        return self.most_left >= 0

    def _most(self, request: Request) -> int:
        tokens = request.num_tokens + self._ahead
        most = 0
        for size in self._sizes:
            most += 2 - (-tokens // size)
        return most

    def _need(self, request: Request, computed: int, hit: Hit | None) -> int:
        need = self._exact(request, hit, computed)
        if request.status == RequestStatus.RUNNING:
            return need - self._frees[request]
        if hit is None or request.num_computed_tokens:
            left = self._left_behind(request)
            return need - sum(block.ref_cnt == 1 for block in left)
        room = self.most_left - need if self._first else sys.maxsize
        self._first = False
        for block in self._hits.unused(request, hit, self._freed, room):
            # What is used, and freed in the step, upstream counts only then.
            counted = not self._one_full_attention and not block.ref_cnt
            need += 1 - counted - (block.block_id in self._revived)
            self._revived.add(block.block_id)
        return need

    def _exact(self, request: Request, hit: Hit | None, computed: int) -> int:
        """Blocks of the prompt that are not allocated.

        Of the whole prompt, or of its first part if upstream asks for no more.
        """
        scheduler = self._scheduler
        tokens = min(request.num_tokens, scheduler.max_model_len)
        known = computed - request.num_computed_tokens
        most = 1 if request.has_encoder_inputs else long_prefill_threshold(scheduler)
        part = min(max(self.budget, 1), tokens - computed, most or tokens)
        first = computed + self._cut(request, part, known)
        ahead = min(first + self._ahead, scheduler.max_model_len)
        need = self._count(request, ahead, hit, computed, first, False)
        if first < tokens and scheduler.scheduler_reserve_full_isl:
            need = max(need, self._count(request, tokens, hit, computed, tokens, True))
        return need

    def _cut(self, request: Request, tokens: int, known: int = 0) -> int:
        """The part of these tokens that upstream runs: a Mamba layer wants it aligned.

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
        return self._needed(request) - self._frees[request]

    @cached_property
    def _freed(self) -> dict[int, Request]:
        """Blocks that become free when upstream schedules the requests that run.

        Each is freed by the last of those that use it.
        """
        freed: dict[int, Request] = {}
        uses: Counter[int] = Counter()
        for request in self._scheduler.running if self._windows else ():
            if self._new_tokens(request) > 0:
                for block in self._left_behind(request):
                    uses[block.block_id] += 1
                    if uses[block.block_id] == block.ref_cnt:
                        freed[block.block_id] = request
        return freed

    @cached_property
    def _frees(self) -> Counter[Request]:
        return Counter(self._freed.values())

    def _left_behind(self, request: Request) -> list[KVCacheBlock]:
        """Blocks that a request gives up when it is scheduled.

        No window of attention will reach them again; nor needs a Mamba layer its state
        of two steps ago.
        """
        left = {}
        for manager in self._windows:
            computed = processed_tokens(request, manager)
            tokens = manager.get_num_skipped_tokens(computed)
            blocks = manager.req_to_blocks.get(request.request_id, ())
            for block in reversed(blocks[: max(0, tokens) // manager.block_size]):
                if block.is_null and not frees_past_gaps(manager):
                    break
                left[block.block_id] = block
            state = getattr(manager, "last_state_block_idx", {}).get(request.request_id)
            if state is not None and state < -(-computed // manager.block_size) - 1:
                left[blocks[state].block_id] = blocks[state]
        return [block for block in left.values() if not block.is_null]

    def _new_tokens(self, request: Request) -> int:
        """Tokens of a running request that the next step has room for."""
        room = tokens_of(request, self._scheduler)
        if request.is_prefill_chunk:
            room = min(room, max(self.budget, 1))
        return self._cut(request, room)

    def _needed(self, request: Request) -> int:
        scheduler, new = self._scheduler, self._new_tokens(request)
        computed = request.num_computed_tokens
        if new <= 0 or (request.is_prefill_chunk and request.has_encoder_inputs):
            return 0  # of the latter, an encoder's cache may leave room for less
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
        """Finds whom upstream preempts: from the end, or of the least priority."""
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


def tokens_of(request: Request, scheduler: "Scheduler") -> int:
    """Tokens of a running request that a step with room for them schedules."""
    computed, coming = request.num_computed_tokens, request.num_output_placeholders
    most = request.num_prompt_tokens + request.max_tokens
    if coming and computed + 2 - coming >= most:
        return 0  # asynchronous scheduling: its last token is on its way
    if scheduler.current_step + 1 < request.next_decode_eligible_step:
        return 0
    tokens: int = request.num_tokens_with_spec + coming - computed
    threshold = long_prefill_threshold(scheduler)
    if 0 < threshold < tokens:
        tokens = threshold
    return max(0, min(tokens, scheduler.max_model_len - 1 - computed))
