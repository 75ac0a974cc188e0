"""SGLang's prefill delayers, the first one and that of 0.5.23.

While only some ranks can prefill, both hold for at most N passes. While all can, that
of 0.5.23 holds as well: as long as the free slots of the fullest rank are fewer than
the largest of the last prefill batches (slot condition). A test compares every decision
of it with SGLang's own code, without its queue trigger, which is an option, and its
watermark of the KV cache's usage: rows do not have the usage.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from vllm_balance.core.policies import OPEN, Decision
from vllm_balance.core.policies.rows import Snapshot

from . import HOLD

WINDOW = 16
"""The number of recent prefill batches that count."""


class RankState(NamedTuple):
    """The state that a rank of SGLang sends to the others."""

    prefillable: bool
    """Whether it has a request that could start or continue to prefill."""
    running: int
    """Requests that decode."""
    waiting: int
    """Requests in the queue."""
    slots: int
    """Requests that can run."""


class SGLangDelayer0523:
    """The delayers of all ranks, which decide alike."""

    def __init__(self, max_delay_passes: int) -> None:
        """A hold lasts that many passes; named as SGLang's server argument."""
        self._max_passes = max_delay_passes
        self._batches: list[deque[int]] = []
        self._passes = 0
        self._skip_first = True

    def reset(self) -> None:
        """Ends a wave."""
        self._passes = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        """One decision for all ranks."""
        if not any(snapshot.pending):
            # Not open: a request that arrives now would prefill alone.
            self._passes = 0
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
        return OPEN if self.allows(states) else HOLD

    def allows(self, states: Sequence[RankState]) -> bool:
        """Whether the ranks may prefill in this pass."""
        if not self._batches:
            self._batches = [deque(maxlen=WINDOW) for _ in states]
        allowed = self._negotiate(states)
        self._passes = 0 if allowed else self._passes + 1
        for batches, state in zip(self._batches, states, strict=True):
            if state.prefillable:
                # The batch that starts is not known yet; SGLang estimates it so, too.
                free = max(state.slots - state.running, 1)
                batches.append(min(max(state.waiting, 1), free))
        return allowed

    def _negotiate(self, states: Sequence[RankState]) -> bool:
        able = [state.prefillable for state in states]
        if not any(able):
            return True
        if all(able):
            if not self._waits_for_more(states):
                return True
            if self._skip_first:
                self._skip_first = False
                return True
        return self._passes >= self._max_passes - 1

    def _waits_for_more(self, states: Sequence[RankState]) -> bool:
        """Whether waiting may give a larger batch."""
        largest = max(max(batches, default=0) for batches in self._batches)
        running = max(state.running for state in states)
        return min(state.slots for state in states) - running < largest


class SGLangDelayer(SGLangDelayer0523):
    """The first delayer: when all ranks can prefill, all do."""

    def _waits_for_more(self, states: Sequence[RankState]) -> bool:
        return False
