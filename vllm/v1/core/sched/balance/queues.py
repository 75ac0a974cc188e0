# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The scheduler's queues: the only place that knows what upstream calls them."""

import heapq
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.balance.upstream import first_of
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
        return heapq.merge(*queues)
    return chain(*queues)


def _looked_at_first(scheduler: "Scheduler") -> Any:
    """The queue that upstream drains before `waiting`.

    Until 0.30 the requests that were skipped in an earlier step; with priorities
    they and `waiting` are one queue. From 0.31 on those that hold KV blocks.
    """
    return first_of(scheduler, "skipped_waiting", "kv_holding_waiting")
