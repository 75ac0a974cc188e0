# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""vLLM 0.30's `--prefill-schedule-interval`."""

from vllm.v1.core.sched.balance.policies.registry import OPEN, Decision
from vllm.v1.core.sched.balance.policies.rows import Snapshot

from . import HOLD


class IntervalPolicy:
    """Prefill in every Nth step.

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
            off_beat and not self._capacity_bound[rank] and snapshot.decoding[rank] > 0
            for rank in ranks
        ]
        return [HOLD if deferred else OPEN for deferred in self._deferred]
