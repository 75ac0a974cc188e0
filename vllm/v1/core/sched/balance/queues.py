# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The scheduler's queues: the only place that knows what upstream calls them."""

import heapq
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import Request

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


def num_waiting(scheduler: "Scheduler") -> int:
    """Requests that wait, for a slot or for something else."""
    return len(scheduler.waiting) + len(scheduler.skipped_waiting)


def in_turn(scheduler: "Scheduler") -> Iterator[Request]:
    """The waiting requests in the order in which the scheduler looks at them."""
    queues = (scheduler.skipped_waiting, scheduler.waiting)
    if scheduler.policy == SchedulingPolicy.PRIORITY:
        return heapq.merge(*queues)
    return chain(*queues)
