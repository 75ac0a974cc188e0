# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Rules of other systems, to compare ours with. They never run in a server."""

from vllm.v1.core.sched.balance.policies.by_name import OPEN, Decision
from vllm.v1.core.sched.balance.policies.rows import Snapshot

HOLD = Decision(admit=False, prefill_budget=0, reason="hold")


class IntervalPolicy:
    """vLLM 0.30's `--prefill-schedule-interval`: prefill in every Nth step.

    A rank follows it only if a request of its own decodes, and not while requests
    were left waiting in the last step in which the rank could prefill (upstream's
    ``prefill_capacity_bound``): so under a standing queue it is off.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._capacity_bound: list[bool] = []
        self._deferred: list[bool] = []

    def reset(self) -> None:
        """A wave has ended; upstream keeps what it knows about the queue."""
        self._deferred = [False] * len(self._deferred)

    def decide(self, snapshot: Snapshot) -> list[Decision]:
        """One decision per rank."""
        ranks = range(len(snapshot.step))
        if not self._deferred:
            self._capacity_bound = self._deferred = [False for _ in ranks]
        self._capacity_bound = [
            self._capacity_bound[rank]
            if self._deferred[rank]
            else snapshot.waiting[rank] > 0
            for rank in ranks
        ]
        off_beat = snapshot.step[0] % self._interval != 0
        self._deferred = [
            off_beat and not self._capacity_bound[rank] and _decodes(snapshot, rank) > 0
            for rank in ranks
        ]
        return [HOLD if deferred else OPEN for deferred in self._deferred]


def _decodes(snapshot: Snapshot, rank: int) -> int:
    """Requests that decode: those that run, less the prompt in progress."""
    slots = snapshot.max_running[rank] - snapshot.running[rank]
    admissible = min(snapshot.waiting[rank], slots)
    return snapshot.running[rank] - max(0, snapshot.pending[rank] - admissible)


class SGLangDelayer:
    """SGLang's prefill delayer.

    While only some of the ranks could prefill, they hold for at most N passes; when
    all could, everybody goes.
    """

    def __init__(self, max_passes: int) -> None:
        self._max_passes = max_passes
        self._delayed = 0

    def reset(self) -> None:
        """A wave has ended."""
        self._delayed = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        """One decision for all ranks."""
        able = [pending > 0 for pending in snapshot.pending]
        if not any(able):
            # Not open: a request that has come since would slip through alone.
            self._delayed = 0
            return HOLD if any(snapshot.running) else OPEN
        if all(able) or self._delayed + 1 >= self._max_passes:
            self._delayed = 0
            return OPEN
        self._delayed += 1
        return HOLD
