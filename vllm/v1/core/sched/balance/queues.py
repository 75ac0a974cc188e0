# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The scheduler's queues: the only place that knows what upstream calls them."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.balance.dispatch import (
    QUEUE_SAMPLE,
    Backlog,
    queued_tokens,
)
from vllm.v1.core.sched.balance.upstream import first_of
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import Request

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


def num_waiting(scheduler: "Scheduler") -> int:
    """Requests that wait, for a slot or for something else."""
    return len(scheduler.waiting) + len(_looked_at_first(scheduler))


def in_turn(scheduler: "Scheduler") -> Iterator[Request]:
    """The waiting requests in the order in which the scheduler looks at them."""
    queues = (_looked_at_first(scheduler), scheduler.waiting)
    merged = hasattr(scheduler, "skipped_waiting")
    if merged and scheduler.policy == SchedulingPolicy.PRIORITY:
        return _smallest_first(*queues)
    return chain(*queues)


def admitted_in_turn(scheduler: "Scheduler") -> Iterator[Request]:
    """Those of them that the scheduler looks at, now that it is paused or not.

    In a pause it looks at none, and from 0.32 on at those that hold KV blocks.
    """
    if scheduler.pause_state == PauseState.UNPAUSED:
        return in_turn(scheduler)
    drained = not hasattr(scheduler, "skipped_waiting")
    return iter(_looked_at_first(scheduler) if drained else ())


def backlog_of(scheduler: "Scheduler") -> Backlog:
    """What the rank has to do, as front-ends are told that dispatch by it."""
    waiting, running = num_waiting(scheduler), scheduler.running
    queues = (_looked_at_first(scheduler), scheduler.waiting)
    stored = chain.from_iterable(getattr(queue, "_heap", queue) for queue in queues)
    sample = _prompts_left(islice(stored, QUEUE_SAMPLE))
    tokens = queued_tokens(sample, waiting) + sum(_prompts_left(running))
    return Backlog(tokens, waiting + len(running))


def _prompts_left(requests: Iterable[Request]) -> list[int]:
    left = [each.num_prompt_tokens - each.num_computed_tokens for each in requests]
    return [tokens if tokens > 0 else 0 for tokens in left]


def _looked_at_first(scheduler: "Scheduler") -> Any:
    """The queue that upstream drains before `waiting`.

    Until 0.30 the requests that were skipped in an earlier step; with priorities
    they and `waiting` are one queue. From 0.31 on those that hold KV blocks.
    """
    return first_of(scheduler, "skipped_waiting", "kv_holding_waiting")


def _smallest_first(*queues: Any) -> Iterator[Request]:
    """The requests of heaps, by priority; a heap's own iterator copies it all."""
    heaps: list[list[Request]] = [queue._heap for queue in queues]
    found = [
        (heap[0].priority, heap[0].arrival_time, heap[0].request_id, number, 0)
        for number, heap in enumerate(heaps)
        if heap
    ]
    heapq.heapify(found)
    while found:
        *_, number, index = found[0]
        heap = heaps[number]
        yield heap[index]
        heapq.heappop(found)
        for child in range(2 * index + 1, min(2 * index + 3, len(heap))):
            request = heap[child]
            key = (request.priority, request.arrival_time, request.request_id)
            heapq.heappush(found, (*key, number, child))
