"""MindIE-LLM's ranks, which vote whether all prefill in a step or none does.

Written from its scheduler (8b4871a), with its defaults. Its default stage rule, a vote
for a prefill as soon as there is a prompt, is `off` on few ranks. Its steps have only
prefills or only decodes; here a step with prefills has decodes, too.
"""

from enum import Enum

from vllm_balance.core.policies import OPEN, Decision
from vllm_balance.core.policies.rows import SECONDS, Snapshot

from . import HOLD


class Stage(Enum):
    """The condition on which a rank votes for a prefill."""

    WASTE = 1
    """Free slots have wasted as much time as a prefill would take from decodes."""
    LAXITY = 2
    """The first token has a smaller share of its limit left than a decode's next."""


WASTED, PREFILL = 0.05, 0.15
"""Seconds that a free slot wastes in a step, and that a prefill takes."""
TTFT, TPOT = 1.5, 0.05
"""Limits of TTFT and TPOT in seconds."""
RECENT = 0.05
"""The weight of a new step in the predicted times."""


class MindIE:
    """The votes of all ranks, and their common decision."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._decode = self._prefill = 0.0
        self.reset()

    def reset(self) -> None:
        """Ends a wave."""
        self._wasted: list[float] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        """Prefills on all ranks if at least as many vote for it as against."""
        seconds = max(snapshot.step_time_us) * SECONDS
        if any(snapshot.prefill_tokens):
            self._prefill += RECENT * (seconds - self._prefill)
        else:
            self._decode += RECENT * (seconds - self._decode)
        self._wasted = self._wasted or [0.0] * len(snapshot.step)
        votes = [self._vote(snapshot, rank) for rank in range(len(snapshot.step))]
        return OPEN if votes.count(True) >= votes.count(False) else HOLD

    def _vote(self, snapshot: Snapshot, rank: int) -> bool | None:
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
        laxity = (TTFT - waited - self._prefill) / TTFT
        return laxity < (TPOT - self._decode) / TPOT
