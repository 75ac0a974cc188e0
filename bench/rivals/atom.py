"""ATOM's coalescer: prefills wait until the prompts of all ranks fill a step enough.

Written from its description (#1611, on by default there with several ranks), with the
defaults of 07b9fdc. Left out are its watermark of the KV cache's usage, which rows
do not have, and its bound in milliseconds, which is off by default.
"""

from vllm_balance.core.policies import OPEN, Decision
from vllm_balance.core.policies.rows import Snapshot

from . import HOLD

TARGET_FILL = 0.9
"""Share of the ranks' step tokens that a release has to fill."""
MAX_HOLD, MAX_HOLD_IN_PROMPT, STALLED = 200, 100, 10
"""Steps that a hold may last: at all, with a prompt begun, and with no new tokens."""


class AtomCoalescer:
    """The coalescers of all ranks, which decide alike."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Ends a wave."""
        self._held = self._stalled = self._tokens = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        """One decision for all ranks."""
        if self._is_released(snapshot):
            self.reset()
            return OPEN
        self._held += 1
        return HOLD

    def _is_released(self, snapshot: Snapshot) -> bool:
        ranks = len(snapshot.step)
        able = sum(map(bool, snapshot.pending))
        if not able:
            # Not open: a request that arrives now would prefill alone.
            return not any(snapshot.running)
        if not any(snapshot.decoding) or self._held >= MAX_HOLD:
            return True
        in_prompt = any(map(int.__gt__, snapshot.running, snapshot.decoding))
        if in_prompt and self._held >= MAX_HOLD_IN_PROMPT:
            return True
        if able < ranks:
            return False
        tokens = sum(map(min, snapshot.pending_tokens, snapshot.max_tokens))
        if tokens >= TARGET_FILL * sum(snapshot.max_tokens):
            return True
        self._stalled = 0 if tokens > self._tokens else self._stalled + 1
        self._tokens = tokens
        return self._stalled >= STALLED
