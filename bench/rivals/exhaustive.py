"""The exhaustive cycle of EB(k*) (2606.00516), carried over from one engine to ranks.

Decode until k slots of N are free, then prefill what is pending: the best k ends most
requests per second of a cycle. There the costs are measured before, and N is of one
engine; here they are means of the steps so far, and N is of all ranks. Any request is
as likely to end in a step as another, and all prompts are equally long.
"""

from math import log

from vllm_balance.core.policies import OPEN, Decision
from vllm_balance.core.policies.rows import Snapshot

from . import HOLD

MEMORY = 0.01
"""What a new step counts in the means."""
MOST = 0.8
"""Share of N that k is at most, as in the paper."""


class ExhaustiveCycle:
    """All ranks at once; they decide alike."""

    def __init__(self) -> None:
        self._decode_s = 0.0
        """Of a step without prefill."""
        self._token_s = 0.0
        """Of a prompt token of the slowest rank, beyond such a step."""
        self._ends = 0.0
        """Share of the decodes that end in a step."""
        self._decoding = 0
        self._left = 0
        """Prompt tokens that are left of what was pending when prefills began."""

    def reset(self) -> None:
        """A wave has ended; costs stay."""
        self._decoding = self._left = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        """One decision for all ranks."""
        self._learn(snapshot)
        if not any(snapshot.decoding):
            return OPEN
        pending = sum(snapshot.pending_tokens)
        self._left = min(self._left - sum(snapshot.prefill_tokens), pending)
        if self._left <= 0 and pending and self._decode_s:
            able, length = sum(snapshot.pending), pending / sum(snapshot.pending)
            slots = sum(snapshot.decoding) + able
            of = slots, max(snapshot.max_tokens), length, len(snapshot.step)
            # Beyond the best k each more lowers the rate.
            is_most = able + 1 >= MOST * slots
            if is_most or self._rate(able, *of) >= self._rate(able + 1, *of):
                self._left = pending
        return OPEN if self._left > 0 else HOLD

    def _learn(self, snapshot: Snapshot) -> None:
        seconds, most = max(snapshot.step_time_us) / 1e6, max(snapshot.prefill_tokens)
        decoding = sum(snapshot.decoding)
        if most and self._decode_s:
            self._token_s = _mean(self._token_s, (seconds - self._decode_s) / most)
        elif not most and seconds and self._decoding:
            self._decode_s = _mean(self._decode_s, seconds)
            self._ends = _mean(self._ends, sum(snapshot.ended) / self._decoding)
        self._decoding = decoding

    def _rate(self, k: int, slots: int, step: int, length: float, ranks: int) -> float:
        """Requests that end per second, if a cycle begins with k free slots.

        What the paper has as the fixed cost of a prefill is a full step here: so much
        do the other ranks wait in vain.
        """
        decodes = self._decode_s / max(self._ends, 1e-4) * log(slots / (slots - k))
        prefills = self._decode_s + self._token_s * (step + length * k / ranks)
        return k / (prefills + decodes)


def _mean(mean: float, value: float) -> float:
    """Of the values so far, the newest most; the first counts whole."""
    return mean + MEMORY * (value - mean) if mean else value
