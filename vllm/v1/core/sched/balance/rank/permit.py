# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a decision allows the scheduler in one step."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vllm.v1.core.sched.balance.rank.reads import free_blocks, max_admitted
from vllm.v1.core.sched.balance.rank.scheduler_writes import SetAside, pass_over
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

from vllm_balance.core.allowance import Allowance, least_tokens
from vllm_balance.core.pending import NOBODY, Refusal
from vllm_balance.core.policies.cost import twice_attended
from vllm_balance.core.policies.decision import OPEN, Decision

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


class PrefillPermit:
    """Holds and clips the prefills of a step, and knows what became of them.

    A waiting request whose KV cache a connector has loaded, up to one block, is never
    held: next to nothing of its prompt is left to compute. A hold comes after the
    connector's lookup, so that it delays no load. The result is kept until the request
    is let pass, so that the connector is not asked in every step.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler = scheduler
        self._set_aside = SetAside()
        self.looked_up: dict[str, int] = {}
        """By waiting request that a connector was asked for, the tokens that it has."""
        self.refusal = NOBODY
        """The request that the last pass could not allocate."""
        # A scheduler makes its gate before it knows its largest step.
        self._begin(OPEN, max_tokens=0)

    def apply(self, decision: Decision) -> None:
        self._begin(decision, self._scheduler.max_num_scheduled_tokens)

    def _begin(self, decision: Decision, max_tokens: int) -> None:
        self.decision = decision
        self._allowance = Allowance(decision, max_tokens)
        self._held: set[str] = set()
        self._held_waiting: set[str] = set()
        self._clipped: list[tuple[Request, int, int]] = []

    @property
    def num_held(self) -> int:
        """Requests that were held in this step, and had or could have had a slot."""
        return len(self._held)

    def holds(self, request: Request) -> bool:
        """Whether a waiting request must be passed over, before it is looked up."""
        name, computed = request.request_id, request.num_computed_tokens
        if not self._allowance.stops_admission or self._is_loaded(request, computed):
            return False
        if self._has_slots_left:
            asks = self._scheduler.connector is not None and not computed
            if asks and name not in self.looked_up:
                return False
            self._hold(request)
        return True

    def _hold(self, request: Request) -> None:
        self._held.add(request.request_id)
        if request.status != RequestStatus.RUNNING:
            self._held_waiting.add(request.request_id)

    @property
    def _has_slots_left(self) -> bool:
        """Whether upstream goes on: fewer are held that wait than slots are free."""
        scheduler = self._scheduler
        slots = max_admitted(scheduler) - len(scheduler.running)
        return len(self._held_waiting) < slots

    def skip(self, queue: RequestQueue, skipped: Iterable[Request]) -> bool:
        """Takes a held request from the head of its queue for the rest of the step.

        `skipped` is upstream's queue for those that it passes over itself; from 0.31 on
        a list for those of the other queue alone.

        Returns:
            False if the request stays where it is, because the pass ends.
        """
        own = queue is self._scheduler.waiting
        if not own and isinstance(skipped, RequestQueue):
            pass_over(queue, skipped)
        elif not own or self._has_slots_left:
            self._set_aside.take(queue)
        else:
            return False
        return True

    def put_back(self) -> None:
        """Ends the pass: what was taken goes back to the head of its queue."""
        if self._clipped:
            self.refusal = self._refused(self._clipped[-1][0])
        self._set_aside.put_back()
        unfinished = self._scheduler.requests
        self.looked_up = {
            name: tokens
            for name, tokens in self.looked_up.items()
            if name in unfinished and not unfinished[name].num_computed_tokens
        }

    def _refused(self, last: Request) -> Refusal:
        """The request that was clipped last, if the pass found no blocks for it.

        A request that was clipped and still waits found no blocks, unless its encoder
        inputs or a Mamba layer needed more tokens than the step had left: the next step
        may have them. A request that waits for another reason stays pending.
        """
        scheduler, name = self._scheduler, last.request_id
        if (
            name in self._held
            or last.status not in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            or last.has_encoder_inputs
            or scheduler.need_mamba_block_aligned_split
        ):
            return NOBODY
        return Refusal(name, free_blocks(scheduler), len(scheduler.running))

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
            A number from 0, if the request is held, to num_new_tokens. What must not
            be cut is held or let pass whole.
        """
        scheduler, allowance = self._scheduler, self._allowance
        waits = request.status != RequestStatus.RUNNING
        if waits and scheduler.connector is not None:
            self.looked_up[request.request_id] = num_computed_tokens
        loaded = waits and self._is_loaded(request, num_computed_tokens)
        allowed = num_new_tokens
        if waits and allowance.stops_admission and not loaded:
            allowed = 0
        elif loaded or not scheduler.scheduler_config.enable_chunked_prefill:
            allowance.take_whole(num_computed_tokens, num_new_tokens)
        else:
            allowed = allowance.take(num_computed_tokens, num_new_tokens)
            if 0 < allowed < num_new_tokens:
                # More than are left: from 0.25 on, a decode padded for its drafts.
                padded = num_new_tokens > request.num_tokens - num_computed_tokens
                if padded or self._is_uncut(request):
                    allowed = num_new_tokens
        if not allowed:
            self._hold(request)
        self._clipped.append((request, num_computed_tokens, allowed))
        return allowed

    def clip_running(
        self, request: Request, num_new_tokens: int, others_run: bool
    ) -> int:
        """As `clip`, for a prompt in progress, which is never idle in a dummy step.

        It then computes `least_tokens`, or all if it must not be cut, and counts as
        held. `others_run`: another request of the rank is scheduled already.
        """
        computed = request.num_computed_tokens
        allowed = self.clip(request, num_new_tokens, computed)
        if not allowed and (allowed := least_tokens(others_run)):
            if self._is_uncut(request):
                allowed = num_new_tokens
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

    def _is_loaded(self, request: Request, computed: int) -> bool:
        """Whether the KV cache came from elsewhere, up to one block.

        A preempted request has lost what was computed. One with an adapter never
        counts: it could take the place of that of a held prompt in progress, which ends
        the engine.
        """
        scheduler = self._scheduler
        if scheduler.connector is None and not request.num_computed_tokens:
            return False
        little = request.num_tokens - computed <= scheduler.block_size
        return computed > 0 and little and not request.lora_request

    def _is_uncut(self, request: Request) -> bool:
        """Whether upstream may want more of a prompt at once than one token.

        In which parts of the prompt is not checked: few models have any, and a whole
        part is computed as with balance off.
        """
        scheduler = self._scheduler
        return scheduler.need_mamba_block_aligned_split or (
            request.has_encoder_inputs
            and scheduler.scheduler_config.disable_chunked_mm_input
        )
