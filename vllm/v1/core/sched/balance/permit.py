# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a decision allows the scheduler in one step."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vllm.v1.core.sched.balance.measure.releases import max_admitted
from vllm.v1.core.sched.balance.policies.decision import OPEN, Decision
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


class PrefillPermit:
    """Holds and clips the prefills of a step, and knows what became of them.

    A waiting request whose KV cache a connector has loaded, up to one block, is never
    held: next to nothing of its prompt is left to compute. With a connector, a hold
    comes after its lookup, so that it delays no load; what the lookup found is kept
    until the request is let pass, and nobody is asked again in every step.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler = scheduler
        self._set_aside: list[tuple[RequestQueue, Request]] = []
        self.known_computed: dict[str, int] = {}
        """Tokens that need not be computed, as told at the lookup, of held requests."""
        self.held_ids: set[str] = set()
        """Requests that were held in this step, and had a slot."""
        self.apply(OPEN)

    def apply(self, decision: Decision) -> None:
        """Begins a step."""
        self.decision = decision
        budget = decision.prefill_budget
        self._budget_left = sys.maxsize if budget is None else budget
        self._clipped: list[tuple[Request, int, int]] = []
        self.known_computed = {
            request_id: tokens
            for request_id, tokens in self.known_computed.items()
            if request_id in self.held_ids
        }
        self.held_ids = set()

    @property
    def _closed(self) -> bool:
        return not self.decision.admit or self._budget_left <= 0

    @property
    def held(self) -> bool:
        """Whether work was kept back in this step."""
        return bool(self.held_ids)

    def holds(self, request: Request) -> bool:
        """Whether a waiting request must be passed over, before it is looked up."""
        computed = request.num_computed_tokens
        if not self._closed or self._is_loaded(request, computed):
            return False
        asks = self._scheduler.connector is not None and not computed
        if asks and self._looks_on and request.request_id not in self.known_computed:
            return False
        if self._looks_on:
            self.held_ids.add(request.request_id)
        return True

    @property
    def _looks_on(self) -> bool:
        """Whether fewer are held than there are free slots: upstream would go on."""
        scheduler = self._scheduler
        slots = max_admitted(scheduler) - len(scheduler.running)
        return len(self._set_aside) < slots

    def skip(self, queue: RequestQueue, skipped: Iterable[Request]) -> bool:
        """Takes a held request from the head of its queue for the rest of the step.

        Args:
            queue: the queue.
            skipped: upstream's queue for those that it passes over itself; from 0.31
                on a list for those of the other queue alone.

        Returns:
            False if the request stays where it is, because the pass ends.
        """
        own = queue is self._scheduler.waiting
        if not own and isinstance(skipped, RequestQueue):
            skipped.prepend_request(queue.pop_request())
        elif not own or self._looks_on:
            self._set_aside.append((queue, queue.pop_request()))
        else:
            return False
        return True

    def put_back(self) -> None:
        """Ends the pass: what was taken goes back to the head of its queue."""
        while self._set_aside:
            queue, request = self._set_aside.pop()
            queue.prepend_request(request)

    def clip(
        self, request: Request, num_new_tokens: int, num_computed_tokens: int
    ) -> int:
        """How many of the prompt tokens may be scheduled in this step.

        Args:
            request: a prompt in progress, or a request that `holds` let pass.
            num_new_tokens: what the scheduler would schedule, at least 1.
            num_computed_tokens: what is computed of the request, or was found in a
                KV cache.

        Returns:
            A number from 0, if the request is held, to num_new_tokens. A budget below
            the least that the scheduler can run of the request is rounded up.
        """
        waits = request.status != RequestStatus.RUNNING
        loaded = waits and self._is_loaded(request, num_computed_tokens)
        if waits and self._closed and not loaded:
            self.known_computed[request.request_id] = num_computed_tokens
            num_new_tokens = 0
        elif self._scheduler.scheduler_config.enable_chunked_prefill and not loaded:
            budget = self._budget_left
            if 0 < budget < num_new_tokens:
                least = self._least(request, num_computed_tokens)
                # More than are left: from 0.25 on, a decode padded for its drafts.
                padded = num_new_tokens > request.num_tokens - num_computed_tokens
                budget = num_new_tokens if padded else max(budget, least)
            num_new_tokens = min(num_new_tokens, budget)
        if num_new_tokens == 0:
            self.held_ids.add(request.request_id)
        self._budget_left = max(0, self._budget_left - num_new_tokens)
        self._clipped.append((request, num_computed_tokens, num_new_tokens))
        return num_new_tokens

    def prefilled(self) -> int:
        """Prompt tokens of the step, as computed.

        The scheduler may have cut a prompt shorter than it was allowed, or have found
        no room for it.
        """
        return sum(
            min(tokens, max(0, request.num_computed_tokens - before))
            for request, before, tokens in self._clipped
        )

    def _is_loaded(self, request: Request, num_computed_tokens: int) -> bool:
        """Whether the KV cache came from elsewhere, up to one block.

        A preempted request has lost what was computed.
        """
        if self._scheduler.connector is None and not request.num_computed_tokens:
            return False
        left = request.num_tokens - num_computed_tokens
        return num_computed_tokens > 0 and left <= self._scheduler.block_size

    def _least(self, request: Request, computed: int) -> int:
        """The fewest tokens of a prompt that the scheduler can run in one step."""
        scheduler = self._scheduler
        least = 1
        if request.has_encoder_inputs and (
            scheduler.scheduler_config.disable_chunked_mm_input
        ):
            # An item that must not be cut is computed whole once it is reached.
            for feature in request.mm_features:
                start = feature.mm_position.offset
                end = start + feature.mm_position.length
                # Drafts by EAGLE look one token ahead, and so reach an item earlier.
                if start - scheduler.use_eagle <= computed < end:
                    least = end - computed
        if scheduler.need_mamba_block_aligned_split:
            size = scheduler.cache_config.block_size
            least = -(-least // size) * size
        return least
