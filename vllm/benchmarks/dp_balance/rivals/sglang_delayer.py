# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""SGLang's prefill delayers, the first one and that of 0.5.23.

While only some ranks can prefill, both hold for at most N passes. While all can, that
of 0.5.23 holds as well: as long as the free slots of the fullest rank are fewer than
the largest of the last prefill batches (slot condition), and if asked to also until the
longest queue is as long as a share of the running requests (queue trigger). A test
compares every decision of it with SGLang's own code, whose watermark of the KV cache's
usage is off: rows do not have the usage.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from vllm.v1.core.sched.balance.policies.registry import OPEN, Decision
from vllm.v1.core.sched.balance.policies.rows import Snapshot

from . import HOLD

WINDOW = 16
"""Prefill batches that are remembered."""
MAX_DELAY_SECONDS = 5.0
"""Of the queue trigger."""


class RankState(NamedTuple):
    """What a rank of SGLang tells the others."""

    prefillable: bool
    """Whether it has a request that could start or continue to prefill."""
    running: int
    """Requests that decode."""
    waiting: int
    """Requests in the queue."""
    slots: int
    """Requests that can run."""


class SGLangDelayer0523:
    """All ranks' delayers at once; they decide alike."""

    def __init__(
        self, max_delay_passes: int, queue_min_ratio: float | None = None
    ) -> None:
        """Named as SGLang's server arguments.

        Args:
            max_delay_passes: passes that a hold lasts.
            queue_min_ratio: of the running requests; None for no queue trigger.
        """
        self._max_passes, self._queue_min_ratio = max_delay_passes, queue_min_ratio
        self._batches: list[deque[int]] = []
        self._passes = 0
        self._delayed_since: float | None = None
        self._skip_first = True
        self._now = 0.0

    def reset(self) -> None:
        """A wave has ended."""
        self._release()

    def decide(self, snapshot: Snapshot) -> Decision:
        """One decision for all ranks."""
        self._now += snapshot.step_time_us[0] / 1e6
        if not any(snapshot.pending):
            # Not open: a request that has come since would slip through alone.
            self._release()
            return HOLD if any(snapshot.running) else OPEN
        states = [
            RankState(pending > 0, decoding, waiting, slots)
            for pending, decoding, waiting, slots in zip(
                snapshot.pending,
                snapshot.decoding,
                snapshot.waiting,
                snapshot.max_running,
                strict=True,
            )
        ]
        return OPEN if self.allows(states, self._now) else HOLD

    def allows(self, states: Sequence[RankState], now: float) -> bool:
        """Whether the ranks may prefill in this pass.

        Args:
            states: of all ranks.
            now: seconds.
        """
        if not self._batches:
            self._batches = [deque(maxlen=WINDOW) for _ in states]
        allowed = self._negotiate(states, now)
        if allowed:
            self._release()
        else:
            if self._delayed_since is None:
                self._delayed_since = now
            self._passes += 1
        for batches, state in zip(self._batches, states, strict=True):
            if state.prefillable:
                # What starts is not known yet; SGLang too takes this for what it holds.
                free = max(state.slots - state.running, 1)
                batches.append(min(max(state.waiting, 1), free))
        return allowed

    def _release(self) -> None:
        self._passes, self._delayed_since = 0, None

    def _negotiate(self, states: Sequence[RankState], now: float) -> bool:
        able = [state.prefillable for state in states]
        if not any(able):
            return True
        if all(able):
            if not self._waits_for_more(states, now):
                return True
            if self._skip_first:
                self._skip_first = False
                return True
        return self._passes >= self._max_passes - 1

    def _waits_for_more(self, states: Sequence[RankState], now: float) -> bool:
        """Whether a larger batch can be hoped for."""
        largest = max(max(batches, default=0) for batches in self._batches)
        running = max(state.running for state in states)
        if min(state.slots for state in states) - running < largest:
            return True
        ratio = self._queue_min_ratio
        since = self._delayed_since
        if ratio is None or not running:
            return False
        if since is not None and now - since >= MAX_DELAY_SECONDS:
            return False
        return max(state.waiting for state in states) < min(
            int(running * ratio), largest
        )


class SGLangDelayer(SGLangDelayer0523):
    """The first: when all ranks can prefill, everybody goes."""

    def _waits_for_more(self, states: Sequence[RankState], now: float) -> bool:
        """It never does."""
        return False
