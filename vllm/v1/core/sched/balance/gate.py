# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The scheduler's side of balance scheduling: measure, exchange, hold and clip."""

import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import chain, islice
from typing import TYPE_CHECKING

import torch.distributed as dist
from vllm import envs
from vllm.logger import init_logger
from vllm.v1.core.sched.balance.ages import PendingAges
from vllm.v1.core.sched.balance.exchange import RowExchange
from vllm.v1.core.sched.balance.hold_bound import BOUND_REACHED
from vllm.v1.core.sched.balance.identity import identity_of
from vllm.v1.core.sched.balance.policy import OPEN, Decision, Policy, create_policy
from vllm.v1.core.sched.balance.rows import Row
from vllm.v1.core.sched.balance.stats import BalanceStats
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler

logger = init_logger(__name__)

_BOUND_WARNING_PERIOD_S = 60.0


def create_balance_gate(
    scheduler: "Scheduler", vllm_config: "VllmConfig"
) -> "BalanceGate | None":
    """The scheduler's gate, or None if balance scheduling is off."""
    parallel_config = vllm_config.parallel_config
    name = parallel_config.data_parallel_balance
    if name == "off":
        return None
    logger.info(
        "Data parallel balance scheduling is on: policy %s, %d ranks.",
        name,
        parallel_config.data_parallel_size,
    )
    return BalanceGate(scheduler, name, parallel_config.data_parallel_balance_ttft)


def _timeout(parallel_config: "ParallelConfig") -> float:
    """Seconds that a rank waits for the others: what the operator allows the
    collective calls on the CPU, or else what upstream allows a step of the model."""
    seconds = parallel_config.cpu_distributed_timeout_seconds
    return float(seconds or envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)


class BalanceGate:
    """Holds the decision that the ranks took together after the last step.

    The engine core calls `exchange` once per step; `Scheduler.schedule` asks
    `holds` before it admits a waiting request and `clip` for every prompt it
    schedules. Requests whose KV cache came from a connector are never held: next to
    nothing of their prompts is left to compute.
    """

    def __init__(
        self, scheduler: "Scheduler", name: str, ttft_budget: float | None = None
    ) -> None:
        """The gate of one rank.

        Args:
            scheduler: the rank's.
            name: the policy, a key of `POLICIES`.
            ttft_budget: seconds from arrival to first token that the operator
                promises; only for the policy "adaptive".
        """
        self._scheduler = scheduler
        self._name = name
        self._ttft_budget = ttft_budget
        self._group: dist.ProcessGroup | None = None
        self._policy = self._create_policy()
        self._ages = PendingAges()
        # A step that is timed now was scheduled as many steps ago as the engine
        # schedules ahead (asynchronous scheduling, pipeline parallelism).
        ahead = scheduler.vllm_config.max_concurrent_batches
        self._scheduled: deque[int] = deque(maxlen=ahead)
        self._exchange = RowExchange(
            _timeout(scheduler.vllm_config.parallel_config),
            identity_of(scheduler.vllm_config),
        )
        self._stats = BalanceStats(policy=name, collect=scheduler.log_stats)
        self._held_steps = 0
        self._held_since = 0.0
        self._bound_releases = 0
        self._bound_warned = -_BOUND_WARNING_PERIOD_S
        self.reset()

    def _create_policy(self) -> Policy:
        if self._ttft_budget is None:
            return create_policy(self._name)
        return create_policy(self._name, {"ttft_budget": self._ttft_budget})

    def reset(self) -> None:
        """Forgets the steps so far: the next is scheduled as if balance were off."""
        self._policy.reset()
        self._scheduled.clear()
        self._last_exchange: float | None = None
        self._apply(OPEN)

    def _apply(self, decision: Decision) -> None:
        self.decision = decision
        budget = decision.prefill_tokens
        self._tokens_left = sys.maxsize if budget is None else budget
        self._clipped: list[tuple[Request, int, int]] = []
        self._held = False

    # Called by the engine core's busy loop.

    def exchange(
        self,
        group: dist.ProcessGroup,
        wave: int,
        step: int,
        active: bool,
        tell_clients: Callable[[], None],
    ) -> None:
        """Tells the other ranks this rank's state and takes the next decision.

        Args:
            group: the data parallel process group.
            wave: number of the wave.
            step: number of the step in the wave, equal on all ranks.
            active: whether any rank has unfinished requests. All ranks know this
                from the same all-reduce, so that all of them skip the gather at
                the end of a wave.
            tell_clients: tells the front-end that this engine is dead.
        """
        now = time.monotonic()
        self._count_hold(now)
        if not active:
            self._end_hold(now)
            self._exchange.rest(wave, step)
            self.reset()
            return
        if group is not self._group:
            # Elastic expert parallelism: new ranks have nothing to remember, so
            # nobody may, or the ranks would decide differently.
            self._group, self._policy = group, self._create_policy()
            self.reset()
        row = self._measure(wave, step, now, time.time())
        snapshot = self._exchange.gather(row, group, tell_clients)
        exchanged = time.monotonic()
        self._last_exchange = now
        self._apply(self._policy.decide(snapshot))
        self._stats.observe_step(self.decision, snapshot, exchanged - now)
        longest = row.held_steps == max(snapshot.held_steps)
        if self.decision == BOUND_REACHED and longest:
            self._warn_of_bound(row.held_steps, now)

    def _warn_of_bound(self, steps: int, now: float) -> None:
        self._bound_releases += 1
        if now - self._bound_warned < _BOUND_WARNING_PERIOD_S:
            return
        self._bound_warned = now
        logger.warning(
            "Data parallel balance: policy %s has held a request of this rank for %d "
            "steps, the bound, and lets all ranks schedule one step as if it were off. "
            "Releases of this kind so far: %d.",
            self._name,
            steps,
            self._bound_releases,
        )

    def _measure(self, wave: int, step: int, now: float, wall: float) -> Row:
        """This rank's row.

        Args:
            wave: number of the wave.
            step: number of the step.
            now: seconds of a clock that does not go back.
            wall: seconds of the clock of `Request.arrival_time`.
        """
        scheduler = self._scheduler
        in_progress = [r for r in scheduler.running if r.is_prefill_chunk]
        pending = in_progress + self._ready()
        waits = [max(0.0, wall - request.arrival_time) for request in pending]
        if self._ttft_budget is not None:
            waits = [wait for wait in waits if wait < self._ttft_budget]
        self._scheduled.append(self._prefilled())
        running, waiting = self._queue_lengths()
        since = now if self._last_exchange is None else self._last_exchange
        return Row(
            wave=wave,
            step=step,
            running=running,
            decoding=running - len(in_progress),
            waiting=waiting,
            pending=len(pending),
            pending_tokens=sum(
                request.num_tokens - request.num_computed_tokens for request in pending
            ),
            held_steps=self._held_steps,
            prefill_tokens=self._scheduled[0],
            step_time_us=int((now - since) * 1e6),
            kv_usage_ppm=int(scheduler.kv_cache_manager.usage * 1e6),
            max_running=scheduler.max_num_running_reqs,
            max_tokens=scheduler.max_num_scheduled_tokens,
            pending_age_us=int(
                self._ages.oldest((request.request_id for request in pending), now)
                * 1e6
            ),
            wait_us=int(max(waits, default=0.0) * 1e6),
        )

    def _prefilled(self) -> int:
        """Prompt tokens of the step. A request that the scheduler asked for need not
        have been scheduled: the KV cache may have been full."""
        return sum(
            tokens
            for request, before, tokens in self._clipped
            if request.num_computed_tokens > before
        )

    def _count_hold(self, now: float) -> None:
        """Ends a step, at a time in seconds of a clock that does not go back."""
        began = now if self._last_exchange is None else self._last_exchange
        if not self._held:
            self._end_hold(began)
            return
        if not self._held_steps:
            self._held_since = began
        self._held_steps += 1
        self._stats.observe_held_step()

    def _end_hold(self, now: float) -> None:
        if self._held_steps:
            self._stats.observe_hold_end(self._held_steps, now - self._held_since)
            self._held_steps = 0

    def _ready(self) -> list[Request]:
        """Waiting requests that could be admitted in the next step."""
        scheduler = self._scheduler
        admissible: list[Request] = []
        slots = scheduler.max_num_running_reqs - len(scheduler.running)
        free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        queues = chain(scheduler.skipped_waiting, scheduler.waiting)
        # The others wait for something else than a slot, and take none.
        ready = (
            request
            for request in queues
            if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        )
        for request in islice(ready, max(slots, 0)):
            free_blocks -= -(-request.num_tokens // scheduler.block_size)
            if free_blocks < 0:
                break
            admissible.append(request)
        return admissible

    def _queue_lengths(self) -> tuple[int, int]:
        scheduler = self._scheduler
        waiting = len(scheduler.waiting) + len(scheduler.skipped_waiting)
        return len(scheduler.running), waiting

    # Called by the scheduler.

    def request_counts(self) -> tuple[int, int]:
        """Running and waiting requests, as the load balancer is told.

        It takes a waiting request for the sign of a full rank. With a TTFT budget,
        requests that could be admitted in the next step count as running.
        """
        running, waiting = self._queue_lengths()
        if self._ttft_budget is None:
            return running, waiting
        ready = len(self._ready())
        return running + ready, waiting - ready

    def holds(self, request: Request) -> bool:
        """Whether a waiting request must not be admitted in this step."""
        if self._is_exempt(request):
            return False
        if self.decision.admit and self._tokens_left > 0:
            return False
        self._held = True
        return True

    @property
    def held(self) -> bool:
        """Whether the gate kept back work in this step that could have been done."""
        return self._held

    def clip(self, request: Request, num_new_tokens: int) -> int:
        """How many of the prompt tokens may be scheduled in this step.

        Args:
            request: a prompt in progress, or a request that `holds` let pass.
            num_new_tokens: what the scheduler would schedule, at least 1.

        Returns:
            A number from 0 to num_new_tokens; at least 1 for a request that
            `holds` let pass.
        """
        self._exchange.begin_step()
        chunked = self._scheduler.scheduler_config.enable_chunked_prefill
        if chunked and not self._is_exempt(request):
            num_new_tokens = min(num_new_tokens, self._tokens_left)
        self._held |= num_new_tokens == 0
        self._tokens_left = max(0, self._tokens_left - num_new_tokens)
        self._clipped.append((request, request.num_computed_tokens, num_new_tokens))
        return num_new_tokens

    @staticmethod
    def _is_exempt(request: Request) -> bool:
        # A preempted request has lost what was computed.
        return (
            request.status != RequestStatus.RUNNING and request.num_computed_tokens > 0
        )

    def shutdown(self) -> None:
        """The engine core ends, perhaps of an error that is being handled."""
        self._exchange.close(sys.exc_info()[1])

    def take_stats(self) -> dict[str, object] | None:
        """What happened since the last call, for `SchedulerStats`."""
        return self._stats.take()
