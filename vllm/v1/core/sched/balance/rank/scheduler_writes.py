# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""All that balance scheduling changes in upstream's scheduler and engine core.

Every other file of `rank` only reads them, which `test_scheduler_writes.py` checks. So
this file has all that the gate may do to a queue.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

from vllm_balance.core.policies.order import ShortFirst

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore


class SetAside:
    """Requests that were taken from the heads of queues for the rest of a pass.

    The scheduler looks at the head of a queue until it stops; who is behind a held
    request is seen only once that is away.
    """

    def __init__(self) -> None:
        self._requests: list[tuple[RequestQueue, Request]] = []

    def take(self, queue: RequestQueue) -> None:
        self._requests.append((queue, queue.pop_request()))

    def put_back(self) -> None:
        while self._requests:
            queue, request = self._requests.pop()
            queue.prepend_request(request)


def pass_over(queue: RequestQueue, skipped: RequestQueue) -> None:
    """Moves the head of a queue to those that the scheduler passes over itself.

    It gives them back when its pass ends.
    """
    skipped.prepend_request(queue.pop_request())


def put_in_order(
    scheduler: "Scheduler", order: ShortFirst, pending: Mapping[str, int]
) -> None:
    """Lets short prompts pass long ones in the queue of those that wait for a slot.

    Those that were preempted stay in their places, and those that wait for something
    else, or hold KV blocks, in their queue. `pending` are tokens to compute of those
    that were pending after the last step.
    """
    waiting = scheduler.waiting
    first = [
        "" if request.status is RequestStatus.PREEMPTED else request.request_id
        for request in islice(waiting, len(pending))
    ]
    order.sort(waiting, first, pending, scheduler.requests)


def keep_prefill_interval(scheduler: "Scheduler") -> None:
    """Undoes what the scheduler concludes from requests that the gate has held.

    From 0.24 on it takes waiting requests that are left over for the sign that
    prefills cannot keep up, and ignores prefill_schedule_interval.
    """
    if hasattr(scheduler, "prefill_capacity_bound"):
        scheduler.prefill_capacity_bound = False


def register_utility(
    core: "EngineCore", name: str, call: Callable[..., object]
) -> None:
    """Lets front-ends call a function by this name, as they call the core's methods."""
    vars(core)[name] = call
