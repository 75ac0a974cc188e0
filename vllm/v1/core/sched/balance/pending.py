# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the scheduler could prefill in its next step."""

from itertools import islice
from typing import TYPE_CHECKING

from vllm.v1.core.sched.balance.queues import in_turn
from vllm.v1.core.sched.balance.upstream import max_admitted
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


class PendingWork:
    """Reads the queues of a scheduler."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler = scheduler

    def in_progress(self) -> list[Request]:
        """Prompts that have been computed in part."""
        return [r for r in self._scheduler.running if r.is_prefill_chunk]

    def admissible(self) -> list[Request]:
        """Waiting requests that could be admitted in the next step."""
        scheduler = self._scheduler
        admissible: list[Request] = []
        slots = max_admitted(scheduler) - len(scheduler.running)
        free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        # The others wait for something else than a slot, and take none.
        ready = (
            request
            for request in in_turn(scheduler)
            if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        )
        for request in islice(ready, max(slots, 0)):
            free_blocks -= -(-request.num_tokens // scheduler.block_size)
            if free_blocks < 0:
                break
            admissible.append(request)
        return admissible
