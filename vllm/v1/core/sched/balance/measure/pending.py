# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the scheduler could prefill in its next step, by upstream's own rules."""

import operator
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from vllm.v1.core.sched.balance.measure.blocks import FreeBlocks
from vllm.v1.core.sched.balance.measure.prefix_hits import PrefixHits
from vllm.v1.core.sched.balance.measure.queues import InTurn
from vllm.v1.core.sched.balance.measure.vllm_compat import max_admitted
from vllm.v1.core.sched.balance.policies.attention_cost import twice_attended
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

_WAITING, _PREEMPTED = RequestStatus.WAITING, RequestStatus.PREEMPTED


@dataclass(frozen=True)
class Pending:
    """Prompts that could be started or continued.

    While nothing changes, it is the same object, so what follows from it is kept.
    """

    requests: list[Request]
    tokens: list[int]
    """Tokens that each has left to compute."""

    @cached_property
    def by_name(self) -> dict[str, int]:
        """The tokens by the name of their request."""
        names = [request.request_id for request in self.requests]
        return dict(zip(names, self.tokens, strict=True))

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the requests."""
        return frozenset(self.by_name)

    @cached_property
    def num_tokens(self) -> int:
        """All tokens that are left to compute."""
        return sum(self.tokens)

    @cached_property
    def attended(self) -> int:
        """Tokens that these attend to."""
        totals = [len(request._all_token_ids) for request in self.requests]
        done = map(operator.sub, totals, self.tokens)
        return sum(map(twice_attended, done, self.tokens)) // 2


class _Counted(NamedTuple):
    """Requests that all could start, as they were counted in an earlier step."""

    requests: list[Request]
    computed: list[int]
    """Tokens of each: an input stream may be computed and then get more input."""
    admissible: Pending
    most_blocks: int


_NOTHING = _Counted([], [], Pending([], []), 0)


class PendingWork:
    """Reads the queues and the KV cache of a scheduler, and decides nothing.

    A request is pending if upstream's scheduler would admit or continue it, given
    steps of any size: it has a slot, its blocks fit beside those of the requests
    before it, and no limit of LoRA adapters stops it. In doubt it is pending: a
    connector that was not asked yet may have its tokens, and an encoder's cache may be
    full. Else a policy would hold what it cannot see.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler = scheduler
        self._in_turn = InTurn(scheduler)
        self._known: Mapping[str, int] = {}
        self._unanswered: Set[str] = frozenset()
        self._before = _NOTHING

    @cached_property
    def _hits(self) -> PrefixHits:
        # A scheduler makes its gate before its KV cache.
        return PrefixHits(self._scheduler)

    def read(self, known_computed: Mapping[str, int], unanswered: Set[str]) -> Pending:
        """All pending requests: those in progress first, then in upstream's order.

        Args:
            known_computed: tokens that a connector has, or the KV cache, of the waiting
                requests that were looked up by the scheduler and held.
            unanswered: requests of which a connector cannot tell yet.
        """
        self._known, self._unanswered = known_computed, unanswered
        scheduler = self._scheduler
        if scheduler.pause_state == PauseState.PAUSED_ALL:
            return Pending([], [])
        scheduler.kv_cache_manager.new_step_starts()  # as upstream's step does first
        self._hits.begin_step()
        free = FreeBlocks(scheduler, self._hits)
        in_progress = [
            request for request in scheduler.running if request.is_prefill_chunk
        ]
        if scheduler.need_mamba_block_aligned_split:
            in_progress = [
                each
                for each in in_progress
                if self._can_start(each, _left(each), each.num_computed_tokens, free)
            ]
        preempted = free.preempted()
        if preempted:
            left = [each for each in in_progress if each not in preempted]
            return Pending(left, list(map(_left, left)))
        for each in in_progress:
            free.take(each, each.num_computed_tokens, None)
        found = self._admissible(free)
        if not in_progress:
            return found
        return Pending(
            in_progress + found.requests, [*map(_left, in_progress), *found.tokens]
        )

    def _admissible(self, free: FreeBlocks) -> Pending:
        scheduler = self._scheduler
        slots = max_admitted(scheduler) - len(scheduler.running)
        if slots <= 0 or not free.any_budget:
            return Pending([], [])
        in_turn = self._ready()
        if scheduler.lora_config:
            in_turn = self._with_adapter(in_turn)
        ready = list(islice(in_turn, slots))
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
        admissible = self._fitting(ready, computed, free)
        all_fit = len(admissible.requests) == len(ready) and not free.tight
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

    def _fitting(
        self, requests: list[Request], computed: list[int], free: FreeBlocks
    ) -> Pending:
        """The first of these requests, up to one that upstream would not admit."""
        of_any_size, known = self._of_any_size, self._known
        # What num_tokens says, without the call.
        totals = [len(request._all_token_ids) for request in requests]
        hits = self._hits.of_each(requests)
        if of_any_size and not known and free.take_all(totals):
            done = [
                mine or hit.tokens for mine, hit in zip(computed, hits, strict=True)
            ]
            return Pending(requests, list(map(operator.sub, totals, done)))
        tokens: list[int] = []
        for request, total, mine, hit in zip(
            requests, totals, computed, hits, strict=True
        ):
            have = max(mine or hit.tokens, known.get(request.request_id, 0))
            left = total - have
            starts = of_any_size or self._can_start(request, left, have, free)
            # What was found may be remembered from before its KV cache was loaded.
            if not starts or not free.take(request, have, None if mine else hit):
                if self._is_in_doubt(request):
                    tokens.append(left)
                break
            tokens.append(left)
        return Pending(requests[: len(tokens)], tokens)

    def _is_in_doubt(self, request: Request) -> bool:
        """Whether a connector may have what the request finds no room for."""
        asked = request.num_computed_tokens or request.request_id in self._known
        return self._scheduler.connector is not None and not asked

    def _ready(self) -> Iterator[Request]:
        """Waiting requests that wait for nothing but a slot. The others take none."""
        unanswered = self._unanswered
        arrived = self._scheduler.finished_recving_kv_req_ids
        for request in self._in_turn.admitted():
            status = request.status
            if status is _WAITING or status is _PREEMPTED:
                if unanswered and request.request_id in unanswered:
                    continue
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

    def _can_start(
        self, request: Request, tokens: int, computed: int, free: FreeBlocks
    ) -> bool:
        """Whether a part that upstream can run fits in a step of decodes."""
        scheduler, budget = self._scheduler, free.budget
        waits = request.status != RequestStatus.RUNNING
        if waits and not scheduler.scheduler_config.enable_chunked_prefill:
            return tokens <= budget
        if not scheduler.need_mamba_block_aligned_split:
            return True
        more = computed - request.num_computed_tokens
        part = min(tokens, budget)
        return scheduler._mamba_block_aligned_split(request, part, more) > 0


def _left(request: Request) -> int:
    """Tokens that a prompt has left to compute."""
    return request.num_tokens - request.num_computed_tokens
