# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a decision allows the scheduler in one step."""

import sys
from collections.abc import Iterable, Set
from itertools import chain
from typing import TYPE_CHECKING

from vllm.v1.core.sched.balance.measure.queues import is_first
from vllm.v1.core.sched.balance.measure.vllm_compat import max_admitted
from vllm.v1.core.sched.balance.policies.attention_cost import (
    cost_of,
    tokens_within,
    twice_attended,
    whole_step,
)
from vllm.v1.core.sched.balance.policies.decision import OPEN, Decision
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


class PrefillPermit:
    """Holds and clips the prefills of a step, and knows what became of them.

    A waiting request whose KV cache a connector has loaded, up to one block, is exempt
    from a hold: next to nothing of its prompt is left to compute. But only if that
    takes away neither slot nor adapter nor KV cache blocks that a held one before it
    needs. With a connector, a hold comes after its lookup, so that it delays no load;
    what the lookup found is kept until the request is let pass, and nobody is asked
    again in every step.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler = scheduler
        self._set_aside: list[tuple[RequestQueue, Request]] = []
        self.known_computed: dict[str, int] = {}
        """Tokens that need not be computed of waiting requests that were looked up."""
        self.unanswered: set[str] = set()
        """Requests of which a connector could not tell when it was asked last."""
        self._asked: dict[str, Request] = {}
        self._held: dict[str, Request] = {}
        self._clipped: list[tuple[Request, int, int]] = []
        self.apply(OPEN)

    def apply(self, decision: Decision) -> None:
        """Begins a step."""
        self.decision = decision
        budget: float | None = decision.prefill_budget
        if budget is None:
            budget = sys.maxsize
            if price := decision.cost_per_attended:
                budget = whole_step(self._scheduler.max_num_scheduled_tokens, price)
        self._budget_left = budget
        found_no_room = {
            request.request_id
            for request, *_ in self._clipped
            if request.status != RequestStatus.RUNNING
        }
        self.known_computed = {
            request_id: tokens
            for request_id, tokens in self.known_computed.items()
            if request_id in self._held or request_id in found_no_room
        }
        self._clipped, self._held = [], {}
        self._num_passed_over = 0

    @property
    def held_ids(self) -> Set[str]:
        """Requests that were held in this step, and had a slot."""
        return self._held.keys()

    @property
    def _closed(self) -> bool:
        return not self.decision.admit or self._budget_left < 1

    @property
    def held(self) -> bool:
        """Whether work was kept back in this step."""
        return bool(self._held)

    def holds(self, request: Request) -> bool:
        """Whether a waiting request must be passed over, before it is looked up."""
        name, computed = request.request_id, request.num_computed_tokens
        looks_on = self._looks_on
        asks = self._scheduler.connector is not None and not computed
        closed = self._closed and not self._is_exempt(request, computed)
        if closed and not (asks and looks_on and name not in self.known_computed):
            if looks_on:
                self._held[name] = request
            return True
        if asks and self._has_adapter(request):
            self._asked[name] = request
            self.known_computed.pop(name, None)
        return False

    @property
    def _looks_on(self) -> bool:
        """Whether fewer are held than there are free slots: upstream would go on."""
        scheduler = self._scheduler
        slots = max_admitted(scheduler) - len(scheduler.running)
        return self._num_passed_over < slots

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
        self._num_passed_over += 1
        return True

    def put_back(self) -> None:
        """Ends the pass: what was taken goes back to the head of its queue."""
        waiting = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        for name, request in self._asked.items():
            told = request.status not in waiting or name in self.known_computed
            if told or is_first(request, self._scheduler):  # or the pass ended at it
                self.unanswered.discard(name)
            else:
                self.unanswered.add(name)
        self._asked = {}
        requests = self._scheduler.requests
        self.unanswered = {
            name
            for name in self.unanswered
            if name in requests and not requests[name].num_computed_tokens
        }
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
        if waits and self._scheduler.connector is not None:
            self.known_computed[request.request_id] = num_computed_tokens
        loaded = waits and self._is_exempt(request, num_computed_tokens)
        budget, per_attended = self._budget_left, self.decision.cost_per_attended
        if waits and self._closed and not loaded:
            num_new_tokens = 0
        elif self._scheduler.scheduler_config.enable_chunked_prefill and not loaded:
            allowed = tokens_within(
                *(budget, num_computed_tokens, num_new_tokens),
                *(per_attended, self.decision.least),
            )
            if 0 < allowed < num_new_tokens:
                budget = 0  # what is left would be part of a token
                least = self._least(request, num_computed_tokens)
                # More than are left: from 0.25 on, a decode padded for its drafts.
                padded = num_new_tokens > request.num_tokens - num_computed_tokens
                allowed = num_new_tokens if padded else max(allowed, least)
            num_new_tokens = min(num_new_tokens, allowed)
        if num_new_tokens == 0:
            self._held[request.request_id] = request
        cost = cost_of(num_computed_tokens, num_new_tokens, per_attended)
        self._budget_left = max(0, budget - cost)
        self._clipped.append((request, num_computed_tokens, num_new_tokens))
        return num_new_tokens

    def clip_running(
        self, request: Request, num_new_tokens: int, others_run: bool
    ) -> int:
        """As `clip`, for a prompt in progress, which is never idle in a dummy step.

        A dummy step is for ranks without requests: some models could read or write the
        state of one that is there. So the prompt computes the least that it can, which
        is one token for most, and is held all the same.

        Args:
            request: the prompt.
            num_new_tokens: what the scheduler would schedule, at least 1.
            others_run: whether another request of the rank is scheduled already.
        """
        computed = request.num_computed_tokens
        allowed = self.clip(request, num_new_tokens, computed)
        if not allowed and not others_run:
            allowed = min(num_new_tokens, self._least(request, computed))
            self._clipped[-1] = request, computed, allowed
        return allowed

    def prefilled(self) -> tuple[int, int]:
        """Prompt tokens of the step, as computed, and what they attend to.

        The scheduler may have cut a prompt shorter than it was allowed, or have found
        no room for it. A single token behind others is computed like that of a decode,
        and does not count.
        """
        chunks = [
            (before, min(tokens, max(0, request.num_computed_tokens - before)))
            for request, before, tokens in self._clipped
        ]
        counted = [chunk for chunk in chunks if chunk[1] != 1 or not chunk[0]]
        twice = sum(twice_attended(*chunk) for chunk in counted)
        return sum(tokens for _, tokens in counted), twice // 2

    def _is_exempt(self, request: Request, computed: int) -> bool:
        """Whether the KV cache came from elsewhere, up to one block.

        And nothing that a held request needs is taken away. A preempted request has
        lost what was computed.
        """
        scheduler = self._scheduler
        if scheduler.connector is None and not request.num_computed_tokens:
            return False
        left = request.num_tokens - computed
        if not computed or left > scheduler.block_size:
            return False
        if not self._held:
            return True
        return self._looks_on and self._has_adapter(request) and self._fits(request)

    def _fits(self, request: Request) -> bool:
        """Whether all blocks of it and of those that are held are free, at most."""
        scheduler = self._scheduler
        ahead = 1 + scheduler.num_spec_tokens + scheduler.num_lookahead_tokens
        cache = scheduler.kv_cache_manager
        blocks = sum(
            2 - (-(each.num_tokens + ahead) // manager.block_size)
            for each in chain(self._held.values(), [request])
            for manager in cache.coordinator.single_type_managers
        )
        return blocks <= cache.block_pool.get_num_free_blocks()

    def _has_adapter(self, request: Request) -> bool:
        """Whether its adapter has a place beside those that run or are held."""
        if not self._scheduler.lora_config or not request.lora_request:
            return True
        adapters = {
            each.lora_request.lora_int_id
            for each in chain(self._scheduler.running, self._held.values(), [request])
            if each.lora_request
        }
        most: int = self._scheduler.lora_config.max_loras
        return len(adapters) <= most

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
