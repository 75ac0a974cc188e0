# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the scheduler could prefill in its next step, by upstream's own rules."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from vllm.v1.core.sched.balance.blocks import FreeBlocks
from vllm.v1.core.sched.balance.prefix_hits import PrefixHits
from vllm.v1.core.sched.balance.queues import admitted_in_turn
from vllm.v1.core.sched.balance.upstream import max_admitted
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

_WAITING, _PREEMPTED = RequestStatus.WAITING, RequestStatus.PREEMPTED


class Pending(NamedTuple):
    """A prompt that could be started or continued."""

    request: Request
    tokens: int
    """Tokens left to compute."""


class _Counted(NamedTuple):
    """Requests that all could start, as they were counted in an earlier step."""

    requests: list[Request]
    computed: list[int]
    """Tokens of each: an input stream may be computed and then get more input."""
    admissible: list[Pending]
    most_blocks: int


_NOTHING = _Counted([], [], [], 0)


class PendingWork:
    """Reads the queues and the KV cache of a scheduler, and changes nothing.

    A request is pending if upstream's scheduler would admit or continue it, given
    steps of any size: it has a slot, its blocks fit beside those of the requests
    before it, and no limit of LoRA adapters stops it. In doubt it is pending: a
    connector that was not asked yet may have its tokens, and an encoder's cache may be
    full. Else a policy would hold what it cannot see.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler = scheduler
        self._budget = 0
        self._known: Mapping[str, int] = {}
        self._before = _NOTHING

    @cached_property
    def _hits(self) -> PrefixHits:
        # A scheduler makes its gate before its KV cache.
        return PrefixHits(self._scheduler)

    def read(self, known_computed: Mapping[str, int]) -> list[Pending]:
        """All pending requests: those in progress first, then in upstream's order.

        Args:
            known_computed: tokens that a connector has, or the KV cache, of the waiting
                requests that were looked up by the scheduler and held.
        """
        self._known = known_computed
        scheduler = self._scheduler
        if scheduler.pause_state == PauseState.PAUSED_ALL:
            return []
        self._hits.begin_step()
        self._budget = self._step_budget()
        free = FreeBlocks(scheduler, self._hits, self._budget)
        in_progress = [
            Pending(request, request.num_tokens - request.num_computed_tokens)
            for request in scheduler.running
            if request.is_prefill_chunk
        ]
        if scheduler.need_mamba_block_aligned_split:
            in_progress = [
                each
                for each in in_progress
                if self._can_start(*each, each.request.num_computed_tokens)
            ]
        preempted = free.preempted()
        if preempted:
            return [each for each in in_progress if each.request not in preempted]
        for each in in_progress:
            free.take(each.request, each.request.num_computed_tokens, None)
        return in_progress + self._admissible(free)

    def _step_budget(self) -> int:
        """Tokens that a step has left for prompts, if only decodes come before."""
        scheduler = self._scheduler
        most = scheduler.max_num_scheduled_tokens
        per_decode = 1 + scheduler.num_spec_tokens
        if len(scheduler.running) * per_decode < most:
            return most - len(scheduler.running) * per_decode
        return most - sum(
            request.num_tokens_with_spec
            + request.num_output_placeholders
            - request.num_computed_tokens
            for request in scheduler.running
            if not request.is_prefill_chunk
        )

    def _admissible(self, free: FreeBlocks) -> list[Pending]:
        scheduler = self._scheduler
        slots = max_admitted(scheduler) - len(scheduler.running)
        if self._budget <= 0:
            return []
        in_turn = self._ready()
        if scheduler.lora_config:
            in_turn = self._with_adapter(in_turn)
        ready = list(islice(in_turn, max(0, slots)))
        computed = [request.num_computed_tokens for request in ready]
        before = self._before
        if (
            ready == before.requests
            and computed == before.computed
            and free.most_left >= before.most_blocks
            and self._hits.all_hold(ready)
        ):
            return before.admissible
        room = free.most_left
        admissible = self._fitting(ready, free)
        all_fit = len(admissible) == len(ready) and not free.tight
        if all_fit and self._of_any_size and scheduler.connector is None:
            self._before = _Counted(ready, computed, admissible, room - free.most_left)
        else:
            self._before = _NOTHING
        return admissible

    @property
    def _of_any_size(self) -> bool:
        """Whether a step can compute as few tokens of a prompt as are left in it."""
        scheduler = self._scheduler
        chunked: bool = scheduler.scheduler_config.enable_chunked_prefill
        return chunked and not scheduler.need_mamba_block_aligned_split

    def _fitting(self, requests: list[Request], free: FreeBlocks) -> list[Pending]:
        """The first of these requests, up to one that upstream would not admit."""
        of_any_size, known = self._of_any_size, self._known
        fitting: list[Pending] = []
        for request in requests:
            computed, hit = request.num_computed_tokens, None
            if not computed:
                hit = self._hits.of(request)
                computed = hit.tokens
            if known:
                computed = max(computed, known.get(request.request_id, 0))
            tokens = request.num_tokens - computed
            if not of_any_size and not self._can_start(request, tokens, computed):
                break
            if not free.take(request, computed, hit):
                break
            fitting.append(Pending(request, tokens))
        return fitting

    def _ready(self) -> Iterator[Request]:
        """Waiting requests that wait for nothing but a slot. The others take none."""
        arrived = self._scheduler.finished_recving_kv_req_ids
        for request in admitted_in_turn(self._scheduler):
            status = request.status
            if status is _WAITING or status is _PREEMPTED:
                yield request
            elif status == RequestStatus.WAITING_FOR_REMOTE_KVS:
                if request.request_id in arrived:
                    yield request
            elif status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
                waited_for = request.structured_output_request
                if waited_for and waited_for.grammar:
                    yield request

    def _with_adapter(self, requests: Iterator[Request]) -> Iterator[Request]:
        """Leaves out those whose adapter finds no place beside those that run."""
        scheduler = self._scheduler
        adapters = {
            request.lora_request.lora_int_id
            for request in scheduler.running
            if request.lora_request and request.lora_request.lora_int_id > 0
        }
        for request in requests:
            if request.lora_request:
                adapter = request.lora_request.lora_int_id
                full = len(adapters) == scheduler.lora_config.max_loras
                if full and adapter not in adapters:
                    continue
                adapters.add(adapter)
            yield request

    def _can_start(self, request: Request, tokens: int, computed: int) -> bool:
        """Whether a part that upstream can run fits in a step of decodes."""
        scheduler, budget = self._scheduler, self._budget
        waits = request.status != RequestStatus.RUNNING
        if waits and not scheduler.scheduler_config.enable_chunked_prefill:
            return tokens <= budget
        if not scheduler.need_mamba_block_aligned_split:
            return True
        more = computed - request.num_computed_tokens
        part = min(tokens, budget)
        return scheduler._mamba_block_aligned_split(request, part, more) > 0
