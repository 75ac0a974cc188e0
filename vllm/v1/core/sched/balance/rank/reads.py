# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What balance scheduling reads of upstream's scheduler, and how releases differ.

Nothing is changed here; that is in `scheduler_writes`.
"""

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request, RequestStatus

from vllm_balance.core.pending import NOBODY, Pending, PendingWork, Prompt, Refusal
from vllm_balance.core.policies.rows import Limits

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

_READY = RequestStatus.WAITING, RequestStatus.PREEMPTED


class SchedulerReads:
    """Finds out which prompts the next step of a scheduler could compute.

    Blocks are counted in the groups of full attention alone. Without one, everything
    that has a slot is pending until upstream refuses it.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        """The KV cache must be there: a scheduler makes its gate before it."""
        self._scheduler = scheduler
        manager = scheduler.kv_cache_manager
        self._pool = manager.block_pool
        cache = manager.coordinator
        groups = cache.single_type_managers
        full = [n for n, g in enumerate(groups) if isinstance(g, FullAttentionManager)]
        self._num_full, self._group = len(full), full[:1]
        self._allocated = groups[full[0]].req_to_blocks if full else {}
        self._size = groups[full[0]].block_size if full else 1
        self._finds = bool(manager.enable_caching and full)
        if self._finds and len(groups) > 1:
            self._finds = self._size == cache.hash_block_size
        # With speculation by EAGLE upstream drops the last block of a hit; from 0.33 on
        # not always.
        self._drops = bool(first_of(cache, "drop_eagle_group_ids", "eagle_group_ids"))
        ahead = scheduler.num_spec_tokens + scheduler.num_lookahead_tokens
        self._ahead, self._per_decode = scheduler.num_lookahead_tokens, 1 + ahead
        self._work: PendingWork[Request] = PendingWork(self._look_up)

    def pending(self, refusal: Refusal, known: Mapping[str, int]) -> Pending:
        """Prompts that the next step could compute.

        The last pass could not allocate `refusal`. Of requests that were looked up and
        held, a connector, or the KV cache, has so many tokens as `known`.
        """
        scheduler = self._scheduler
        if scheduler.pause_state == PauseState.PAUSED_ALL:
            return Pending({}, 0)
        running = scheduler.running
        begun = [request for request in running if request.is_prefill_chunk]
        slots = max(0, max_admitted(scheduler) - len(running))
        free = free_blocks(scheduler)
        if not refusal.lasts(free, len(running)):
            refusal = NOBODY
        if self._num_full:
            decodes = (len(running) - len(begun)) * self._per_decode
            free -= self._num_full * -(-decodes // self._size)
        else:
            free = sys.maxsize
        # Upstream promotes what waits for more than a slot, also in a hold.
        ready = (each for each in in_order(scheduler) if each.status in _READY)
        waiting = islice(ready, slots)
        return self._work.read(begun, waiting, free, refusal, known)

    def _look_up(self, request: Request, before: Prompt | None) -> Prompt:
        tokens: int = request.num_tokens
        computed: int = request.num_computed_tokens
        whole = tokens + self._ahead
        if not self._scheduler.scheduler_reserve_full_isl:
            whole = 1  # upstream asks for no more than the first part
        used = len(self._allocated.get(request.request_id, ()))
        if self._finds and not computed and not request.skip_reading_prefix_cache:
            computed, used = self._find(request, before)
        blocks = max(0, -(-whole // self._size) - used) * self._num_full
        return Prompt(tokens, computed, blocks)

    def _find(self, request: Request, before: Prompt | None) -> tuple[int, int]:
        """Tokens that are cached, and the blocks of them that a request uses.

        In a window of attention fewer may be cached, which is not checked. Blocks are
        evicted from the end of a prompt, and a request that uses one uses those before
        it, too.
        """
        hashes = request.block_hashes
        end = min(len(hashes), (request.num_tokens - 1) // self._size)
        find, group = self._pool.get_cached_block, self._group

        def is_unused(index: int) -> bool:
            return not find(hashes[index], group)[0].ref_cnt

        hits = 0
        if before and before.computed:
            hits = min(end, before.computed // self._size + self._drops)
        while hits and not find(hashes[hits - 1], group):
            hits -= 1
        while hits < end and find(hashes[hits], group):
            hits += 1
        used = hits = max(0, hits - self._drops)
        if hits and is_unused(hits - 1):
            used = 0 if is_unused(0) else bisect_left(range(hits), True, key=is_unused)
        return hits * self._size, used


HEADS = 64
"""Requests of a heap that are read: its first elements are nearly those that come next.
A queue's own iterator would copy and sort all of it."""
_PRIORITY = attrgetter("priority", "arrival_time", "request_id")


def in_order(scheduler: "Scheduler") -> Iterable[Request]:
    """The waiting requests in the order in which the scheduler looks at them.

    In a pause it looks at none, and from 0.32 on at those that hold KV blocks.
    """
    first, waiting = first_queue(scheduler), scheduler.waiting
    is_later = not hasattr(scheduler, "skipped_waiting")
    if scheduler.pause_state != PauseState.UNPAUSED:
        waiting = ()
        first = first if is_later else ()
    if scheduler.policy != SchedulingPolicy.PRIORITY:
        return chain(first, waiting)
    heaps = [
        list(islice(each._heap, HEADS)) if each else [] for each in (first, waiting)
    ]
    if not is_later:
        return sorted(chain(*heaps), key=_PRIORITY)
    return chain.from_iterable(sorted(heap, key=_PRIORITY) for heap in heaps)


def free_blocks(scheduler: "Scheduler") -> int:
    """Blocks of the KV cache that no request uses."""
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def num_waiting(scheduler: "Scheduler") -> int:
    """Requests that wait, for a slot or for something else."""
    return len(scheduler.waiting) + len(first_queue(scheduler))


QUEUE_SAMPLE = 64
"""Waiting requests whose tokens are counted; the others are taken to be like them."""


def load_of(scheduler: "Scheduler") -> dict[str, int]:
    """Prompt tokens that are not computed, and tokens that all requests attend to."""
    first = first_queue(scheduler)
    queues = [getattr(queue, "_heap", queue) for queue in (first, scheduler.waiting)]
    sample = list(islice(chain(*queues), QUEUE_SAMPLE))
    scale = num_waiting(scheduler) / len(sample) if sample else 0.0

    counts: dict[str, Callable[[Request], int]] = {
        "unprefilled_tokens": lambda r: max(
            0, r.num_prompt_tokens - r.num_computed_tokens
        ),
        "context_tokens": attrgetter("num_tokens"),
    }
    return {
        name: round(scale * sum(map(of, sample))) + sum(map(of, scheduler.running))
        for name, of in counts.items()
    }


def first_queue(scheduler: "Scheduler") -> Any:
    """The queue that upstream drains before `waiting`.

    Until 0.30 the requests that were skipped in an earlier step; with priorities
    they and `waiting` are one queue. From 0.31 on those that hold KV blocks.
    """
    return first_of(scheduler, "skipped_waiting", "kv_holding_waiting")


def first_of(owner: object, *names: str) -> Any:
    """The first of these attributes that the release has.

    The rebase tools read the names at each call: a release with none of them is
    refused.
    """
    for name in names:
        if hasattr(owner, name):
            return getattr(owner, name)
    raise AttributeError(
        f"{type(owner).__qualname__} has none of {', '.join(names)}: these files of "
        "vllm-balance do not fit this release of vLLM."
    )


def max_admitted(scheduler: "Scheduler") -> int:
    """How many requests may run.

    From 0.31 on, max_num_active_seqs can make it less than the slots of the model
    runner. An input stream that waits for more has a slot from 0.25 on, which is not
    looked at.
    """
    return first_of(scheduler, "max_num_active_reqs", "max_num_running_reqs")


def limits_of(scheduler: "Scheduler") -> Limits:
    """What other ranks must know of its configuration."""
    return Limits(max_admitted(scheduler), scheduler.max_num_scheduled_tokens)
