"""MindIE-LLM's ranks, which vote whether all prefill in a step or none does.

Written from its scheduler (8b4871a), with its defaults; its usual wish, for a prefill
as soon as there is a prompt, is `off` on few ranks. There a step is of prefills or
of decodes alone; here a step with prefills has decodes, too.
"""

from enum import Enum

from vllm_balance.core.policies import OPEN, Decision
from vllm_balance.core.policies.rows import SECONDS, Snapshot

from . import HOLD


class Stage(Enum):
    """By what a rank wishes for a prefill."""

    WASTE = 1
    """Once empty slots have wasted as much as a prefill would take from decodes."""
    LAXITY = 2
    """Once the first token has less of its limit left than the next one of a decode."""


WASTED, PREFILL = 0.05, 0.15
"""Seconds that a free slot wastes in a step, and those of a prefill."""
TTFT, TPOT = 1.5, 0.05
"""Seconds that are expected."""
RECENT = 0.05
"""What a new step counts in the times that are predicted."""


class MindIE:
    """All ranks at once; they decide alike."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._decode = self._prefill = 0.0
        self.reset()

    def reset(self) -> None:
        """A wave has ended."""
        self._wasted: list[float] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        """Prefill on all if as many ranks wish for it as for decodes; some abstain."""
        seconds = max(snapshot.step_time_us) * SECONDS
        if any(snapshot.prefill_tokens):
            self._prefill += RECENT * (seconds - self._prefill)
        else:
            self._decode += RECENT * (seconds - self._decode)
        self._wasted = self._wasted or [0.0] * len(snapshot.step)
        wishes = [self._wishes(snapshot, rank) for rank in range(len(snapshot.step))]
        return OPEN if wishes.count(True) >= wishes.count(False) else HOLD

    def _wishes(self, snapshot: Snapshot, rank: int) -> bool | None:
        if not snapshot.pending[rank]:
            return False if snapshot.decoding[rank] else None
        if not snapshot.decoding[rank]:
            return True
        waited = snapshot.pending_age_us[rank] * SECONDS
        if self._stage is Stage.WASTE:
            running = snapshot.running[rank]
            self._wasted[rank] += WASTED * (snapshot.max_running[rank] - running)
            if PREFILL * running > self._wasted[rank]:
                return False
            self._wasted[rank] = 0.0
            return True
        left = (TTFT - waited - self._prefill) / TTFT
        return left < (TPOT - self._decode) / TPOT
