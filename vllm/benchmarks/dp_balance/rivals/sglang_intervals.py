# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""SGLang 0.5.23's `--prefill-decode-interval` and `--min-free-slots-delay`.

A test compares every decision of both with SGLang's own code.
"""

from collections.abc import Sequence

from vllm.v1.core.sched.balance.policies.registry import OPEN, Decision
from vllm.v1.core.sched.balance.policies.rows import Snapshot

from . import HOLD


class DecodeInterval:
    """After a pass in which any rank prefills, N passes in which none does.

    A rank that decodes fewer requests than `min_bs` does not wait.
    """

    def __init__(self, interval: int, min_bs: int = 0) -> None:
        self._interval, self._min_bs = interval, min_bs
        self._left: list[int] = []
        """Per rank: passes without prefill that are to come."""

    def reset(self) -> None:
        """A wave has ended."""
        self._left = []

    def decide(self, snapshot: Snapshot) -> list[Decision]:
        """One decision per rank."""
        decoding = snapshot.decoding
        if not any(decoding):
            return [OPEN] * len(decoding)  # such passes take no time there
        defers = self.defers(any(snapshot.prefill_tokens), decoding)
        return [HOLD if each else OPEN for each in defers]

    def defers(self, prefilled: bool, decoding: Sequence[int]) -> list[bool]:
        """Per rank: whether it does not prefill in the next pass.

        Args:
            prefilled: whether any rank did in the last one.
            decoding: requests per rank.
        """
        if prefilled or not self._left:
            self._left = [self._interval * prefilled for _ in decoding]
        for rank, running in enumerate(decoding):
            if running < self._min_bs:
                self._left[rank] = 0
        defers = [left > 0 for left in self._left]
        self._left = [max(0, left - 1) for left in self._left]
        return defers


class FreeSlots:
    """A rank that runs requests starts others once N slots are free; each by itself."""

    def __init__(self, slots: int) -> None:
        self._slots = slots

    def reset(self) -> None:
        """A wave has ended."""

    def decide(self, snapshot: Snapshot) -> list[Decision]:
        """One decision per rank."""
        return [
            HOLD
            # A prompt in progress goes on.
            if running == decoding and self.delays(running, slots)
            else OPEN
            for running, decoding, slots in zip(
                snapshot.running, snapshot.decoding, snapshot.max_running, strict=True
            )
        ]

    def delays(self, running: int, slots: int) -> bool:
        """Whether a rank waits that runs so many requests of so many that it can."""
        least = min(self._slots, slots)
        return least > 1 and running > 0 and slots - running < least
