# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The ranks' schedulers reduced to counters: identical steps, a hundred times faster.

Models vLLM's scheduler (first come first served, chunked prefill, prefix caching, no
speculation) and the balance gate, with a KV cache that never fills; `limited` is for
one that does. Then a rank has at most one prompt in progress, the last of its running
queue, and a request that decodes needs no attention until the step in which it ends.
"""

import math
import sys
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import islice
from operator import add

from vllm.v1.core.sched.balance.dispatch import (
    QUEUE_SAMPLE,
    Backlog,
    queued_tokens,
)
from vllm.v1.core.sched.balance.policies.by_name import OPEN, Decision
from vllm.v1.core.sched.balance.policies.rows import Snapshot

from ..front_end.coordinator import Counts, RankCounts
from ..requests.workload import SimRequest
from ..step_time.model import Loads
from .engine import Outcome, RankLimits
from .prefix_cache import PrefixCache


class FastEngine:
    """All ranks, as columns: each list has one value per rank."""

    def __init__(
        self,
        limits: RankLimits,
        ttft_budget: float | None = None,
        async_scheduling: bool = False,
    ) -> None:
        """Makes empty ranks.

        Args:
            limits: the limits of each rank.
            ttft_budget: what the gate of a server would be told, in seconds.
            async_scheduling: whether a step is scheduled before the last has ended.
        """
        self._limits = limits
        self._ttft_budget = ttft_budget
        ranks = limits.ranks
        self._ranks = range(ranks)
        self._waiting: list[deque[SimRequest]] = [deque() for _ in self._ranks]
        self._partial: list[SimRequest | None] = [None] * ranks
        """The prompt in progress."""
        self._decodes = [0] * ranks
        self._context = [0] * ranks
        self._step = 0
        self._ending: defaultdict[int, list[SimRequest]] = defaultdict(list)
        """By the step in which the requests get their last token."""
        self._unfinished = 0
        self._first: list[SimRequest] = []
        self._ended = [0] * ranks
        """Requests that have had their last step and keep a slot until it ends."""
        self._in_flight: deque[Outcome] = deque()
        """Of the steps that were scheduled and have not ended."""
        self._prefill = [0] * ranks
        self._attended = [0.0] * ranks
        self._cache = [PrefixCache() for _ in self._ranks]
        # Prompt tokens of the step that ends next, and of those after it.
        self._scheduled: deque[Sequence[int]] = deque(maxlen=1 + async_scheduling)
        self.held = [False] * ranks
        self._held_slots = [0] * ranks  # for requests at the head of the queue
        self._new: set[int] = set()  # by `id`, those that arrived in the step
        self._changed = set(self._ranks)
        self._pending = [0] * ranks
        self._pending_tokens = [0] * ranks
        self._since = [0.0] * ranks
        """When the oldest pending request was first seen pending."""
        self._sent: list[list[float]] = [[] for _ in self._ranks]
        """When the pending requests were sent."""
        # Steps in which the rank held requests, and when its longest hold began.
        self._held_total, self._held_since = [0] * ranks, [0] * ranks
        self._max_running = (limits.max_num_seqs,) * ranks
        self._max_tokens = (limits.max_num_batched_tokens,) * ranks
        self._zeros = (0,) * ranks
        self.end_wave()

    def end_wave(self) -> None:
        """Forgets the decision and the holds."""
        self._decisions: Sequence[Decision] | None = None
        self._last_exchange: float | None = None
        self._scheduled.clear()
        self._in_flight.clear()  # a step without requests at most

    def decide(self, decisions: Decision | Sequence[Decision]) -> None:
        """Sets what every rank, or each rank, may do in the next step."""
        if isinstance(decisions, Decision):
            unlimited = decisions.admit and decisions.prefill_budget is None
            self._decisions = None if unlimited else (decisions,) * len(self._ranks)
        else:
            self._decisions = decisions

    def add(self, rank: int, request: SimRequest) -> None:
        """Hands a request to a rank."""
        request.rank = rank
        self._waiting[rank].append(request)
        self._new.add(id(request))
        self._changed.add(rank)
        self._unfinished += 1

    def has_work(self) -> bool:
        """Whether any rank has an unfinished request."""
        return self._unfinished > 0

    def _running(self, rank: int) -> int:
        partial = self._partial[rank] is not None
        return self._decodes[rank] + partial + self._ended[rank]

    def counts(self) -> Counts:
        """What the ranks tell the coordinator."""
        return [
            RankCounts(len(self._waiting[rank]), self._running(rank))
            for rank in self._ranks
        ]

    def backlogs(self) -> Counts:
        """What the ranks tell the coordinator for a dispatch by tokens."""
        return [RankCounts(*self._backlog(rank)) for rank in self._ranks]

    def _backlog(self, rank: int) -> Backlog:
        waiting, partial = self._waiting[rank], self._partial[rank]
        sample = [request.left for request in islice(waiting, QUEUE_SAMPLE)]
        tokens = queued_tokens(sample, len(waiting))
        if partial is not None:
            tokens += partial.left
        return Backlog(tokens, len(waiting) + self._running(rank))

    def schedule(self) -> Loads:
        """Starts a step on every rank."""
        self._step += 1
        self._prefill = [0] * len(self._ranks)
        self._attended = [0.0] * len(self._ranks)
        self.held = [False] * len(self._ranks)
        self._held_slots = [0] * len(self._ranks)
        max_running = self._limits.max_num_seqs
        for rank in self._ranks:
            if self._partial[rank] is not None or (
                self._waiting[rank]
                and self._decodes[rank] + self._ended[rank] < max_running
            ):
                self._schedule_prefill(rank)
        self._scheduled.append(self._prefill)
        loads = Loads(self._prefill, self._decodes, self._context, self._attended)
        self._advance()
        return loads

    def _schedule_prefill(self, rank: int) -> None:
        """Continues the prompt in progress and admits requests, as far as allowed."""
        admit, limit, _ = self._decisions[rank] if self._decisions else OPEN
        allowed = sys.maxsize if limit is None else limit
        budget = self._limits.max_num_batched_tokens - self._decodes[rank]
        running = self._running(rank)
        request = self._partial[rank]
        if request is not None and budget > 0:
            tokens = min(request.left, budget, allowed)
            self.held[rank] = tokens == 0
            self._compute(rank, request, tokens)
            budget -= tokens
            allowed -= tokens
        waiting = self._waiting[rank]
        while waiting and budget > 0 and running < self._limits.max_num_seqs:
            if not admit or allowed == 0:
                self.held[rank] = True
                self._held_slots[rank] = self._limits.max_num_seqs - running
                break
            request = waiting.popleft()
            if request.hash_ids:
                request.left -= self._cache[rank].hit(request)
            tokens = min(request.left, budget, allowed)
            self._compute(rank, request, tokens)
            running += 1
            budget -= tokens
            allowed -= tokens

    def _compute(self, rank: int, request: SimRequest, tokens: int) -> None:
        position = request.prompt_len - request.left
        self._attended[rank] += tokens * (position + tokens / 2)
        request.left -= tokens
        if tokens and request.hash_ids:
            self._cache[rank].store(request, position + tokens)
        self._prefill[rank] += tokens
        if request.left:
            self._partial[rank] = request
        else:
            self._partial[rank] = None
            self._first.append(request)
        self._changed.add(rank)

    def _advance(self) -> None:
        """What the step brings to the next one; the scheduler knows it at once."""
        first, self._first = self._first, []
        done = self._ending.pop(self._step, [])
        self._context = [
            context + decodes
            for context, decodes in zip(self._context, self._decodes, strict=True)
        ]
        self._decodes = self._decodes.copy()  # the loads of the step are the old list
        for request in done:
            rank = request.rank
            self._decodes[rank] -= 1
            self._context[rank] -= request.prompt_len + request.output_len - 1
        for request in first:
            rank = request.rank
            if request.output_len == 1:
                done.append(request)
                continue
            self._decodes[rank] += 1
            self._context[rank] += request.prompt_len
            self._ending[self._step + request.output_len - 1].append(request)
        for request in done:
            self._ended[request.rank] += 1
        self._in_flight.append(Outcome(first, done))

    def update(self) -> Outcome:
        """Ends the step that was scheduled first."""
        outcome = self._in_flight.popleft()
        for request in outcome.done:
            self._ended[request.rank] -= 1
            self._changed.add(request.rank)
        self._unfinished -= len(outcome.done)
        return outcome

    def exchange(self, wave: int, step: int, now: float) -> Snapshot:
        """The rows of all ranks, as the gate measures them."""
        self._held_total = list(map(add, self._held_total, self.held))
        for rank in self._changed:
            self._measure_pending(rank, now)
        self._changed.clear()
        self._new.clear()
        since = now if self._last_exchange is None else self._last_exchange
        self._last_exchange = now
        ranks = len(self._ranks)
        decoding = tuple(map(add, self._decodes, self._ended))
        return Snapshot(
            wave=(wave,) * ranks,
            step=(step,) * ranks,
            running=tuple(
                [
                    active + (partial is not None)
                    for active, partial in zip(decoding, self._partial, strict=True)
                ]
            ),
            decoding=decoding,
            waiting=tuple([len(queue) for queue in self._waiting]),
            pending=tuple(self._pending),
            pending_tokens=tuple(self._pending_tokens),
            held_steps=tuple(
                [
                    total - before if pending else 0
                    for total, before, pending in zip(
                        self._held_total, self._held_since, self._pending, strict=True
                    )
                ]
            ),
            prefill_tokens=tuple(self._scheduled[0]),
            step_time_us=(int((now - since) * 1e6),) * ranks,
            max_running=self._max_running,
            max_tokens=self._max_tokens,
            pending_age_us=tuple(
                [
                    int((now - since) * 1e6) if pending else 0
                    for pending, since in zip(self._pending, self._since, strict=True)
                ]
            ),
            wait_us=tuple([self._wait_us(sent, now) for sent in self._sent]),
        )

    def _wait_us(self, sent: Sequence[float], now: float) -> int:
        """The longest wait that can still keep the budget, if there is one."""
        if self._ttft_budget is None:
            return 0
        waits = [now - time for time in sent if now - time < self._ttft_budget]
        return int(max(waits, default=0.0) * 1e6)

    def _measure_pending(self, rank: int, now: float) -> None:
        slots = self._limits.max_num_seqs - self._running(rank)
        pending = list(islice(self._waiting[rank], slots))
        total = self._held_total[rank]
        for request in pending[: self._held_slots[rank]]:
            if id(request) in self._new:
                request.pending_since = now
                request.held_since = total - 1
        if (partial := self._partial[rank]) is not None:
            pending.insert(0, partial)
        for request in pending:
            if math.isnan(request.pending_since):
                request.pending_since = now
                request.held_since = total
        if partial is not None and self._prefill[rank]:
            partial.held_since = total
        self._pending[rank] = len(pending)
        self._pending_tokens[rank] = sum([request.left for request in pending]) - sum(
            [
                self._cache[rank].hit(request)
                for request in pending
                if request.hash_ids and request is not partial
            ]
        )
        self._sent[rank] = [request.sent for request in pending]
        if pending:
            # First come, first served: nobody became pending before the first.
            self._since[rank] = pending[0].pending_since
            self._held_since[rank] = min([request.held_since for request in pending])
