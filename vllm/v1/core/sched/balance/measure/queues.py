# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The scheduler's queues: the only place that knows what upstream calls them."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.balance.dispatch import QUEUE_SAMPLE, queued_tokens
from vllm.v1.core.sched.balance.measure.vllm_compat import first_of
from vllm.v1.core.sched.balance.policies.order import ShortFirst
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


def num_waiting(scheduler: "Scheduler") -> int:
    """Requests that wait, for a slot or for something else."""
    return len(scheduler.waiting) + len(_looked_at_first(scheduler))


def is_first(request: Request, scheduler: "Scheduler") -> bool:
    """Whether a request is at the head of its queue."""
    queues = (scheduler.waiting, _looked_at_first(scheduler))
    return any(queue and queue.peek_request() is request for queue in queues)


def put_in_order(
    scheduler: "Scheduler", order: ShortFirst, pending: Mapping[str, int]
) -> None:
    """Lets short prompts pass long ones in the queue of those that wait for a slot.

    Those that were preempted stay in their places, and those that wait for something
    else, or hold KV blocks, in their queue.

    Args:
        scheduler: one that serves first come first served.
        order: of its rank.
        pending: tokens to compute of those that were pending after the last step.
    """
    waiting = scheduler.waiting
    first = [
        "" if request.status is RequestStatus.PREEMPTED else request.request_id
        for request in islice(waiting, len(pending))
    ]
    order.sort(waiting, first, pending, scheduler.requests)


class InTurn:
    """The waiting requests in the order in which the scheduler looks at them."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler = scheduler
        self._orders = HeapOrder(), HeapOrder()

    def __iter__(self) -> Iterator[Request]:
        scheduler = self._scheduler
        queues = (_looked_at_first(scheduler), scheduler.waiting)
        if scheduler.policy != SchedulingPolicy.PRIORITY:
            return chain(*queues)
        heaps = [queue._heap for queue in queues]
        if hasattr(scheduler, "skipped_waiting"):
            return self._orders[0].of(heaps)
        first, second = self._orders
        return chain(first.of(heaps[:1]), second.of(heaps[1:]))

    def admitted(self) -> Iterator[Request]:
        """Those of them that the scheduler looks at, now that it is paused or not.

        In a pause it looks at none, and from 0.32 on at those that hold KV blocks.
        """
        scheduler = self._scheduler
        if scheduler.pause_state == PauseState.UNPAUSED:
            return iter(self)
        drained = not hasattr(scheduler, "skipped_waiting")
        return iter(_looked_at_first(scheduler) if drained else ())


class HeapOrder:
    """The requests of heaps, smallest first, as far as one goes on.

    Remembered as long as the requests that were looked at are where they were. A
    queue's own iterator copies all of it.
    """

    def __init__(self) -> None:
        self._start([])

    def of(self, heaps: list[list[Request]]) -> Iterator[Request]:
        """They must not change while one goes on."""
        if len(heaps) != len(self._places) or not all(map(_holds, heaps, self._places)):
            self._start(heaps)
        order = self._order
        yield from order
        while self._next:
            *_, number, index = heapq.heappop(self._next)
            request = heaps[number][index]
            order.append(request)
            for child in (2 * index + 1, 2 * index + 2):
                self._reach(heaps[number], number, child)
            yield request

    def _start(self, heaps: list[list[Request]]) -> None:
        self._order: list[Request] = []
        self._next: list[tuple[int, float, str, int, int]] = []
        self._places: list[dict[int, Request | None]] = [{} for _ in heaps]
        for number, heap in enumerate(heaps):
            self._reach(heap, number, 0)

    def _reach(self, heap: list[Request], number: int, index: int) -> None:
        request = heap[index] if index < len(heap) else None
        self._places[number][index] = request
        if request is not None:
            key = (request.priority, request.arrival_time, request.request_id)
            heapq.heappush(self._next, (*key, number, index))


def _holds(heap: list[Request], places: dict[int, Request | None]) -> bool:
    """Whether the heap has these requests at these places, and none at the others."""
    size = len(heap)
    there = [heap[place] if place < size else None for place in places]
    return there == list(places.values())


def backlog_of(scheduler: "Scheduler", of_context: bool = False) -> tuple[int, int]:
    """What the rank has to do, as front-ends are told that dispatch by it.

    Args:
        scheduler: the rank's.
        of_context: whether to count the tokens to which its requests attend.

    Returns:
        Those tokens, or else prompt tokens that are not computed, and requests in
        flight.
    """
    count = _contexts if of_context else _prompts_left
    waiting, running = num_waiting(scheduler), scheduler.running
    queues = (_looked_at_first(scheduler), scheduler.waiting)
    stored = chain.from_iterable(getattr(queue, "_heap", queue) for queue in queues)
    sample = count(islice(stored, QUEUE_SAMPLE))
    tokens = queued_tokens(sample, waiting) + sum(count(running))
    return tokens, waiting + len(running)


def _prompts_left(requests: Iterable[Request]) -> list[int]:
    return [
        left if (left := each.num_prompt_tokens - each.num_computed_tokens) > 0 else 0
        for each in requests
    ]


def _contexts(requests: Iterable[Request]) -> list[int]:
    return [each.num_tokens for each in requests]


def _looked_at_first(scheduler: "Scheduler") -> Any:
    """The queue that upstream drains before `waiting`.

    Until 0.30 the requests that were skipped in an earlier step; with priorities
    they and `waiting` are one queue. From 0.31 on those that hold KV blocks.
    """
    return first_of(scheduler, "skipped_waiting", "kv_holding_waiting")
