"""Rules that space prefills by steps: the intervals of vLLM and of SGLang."""

from collections.abc import Sequence

from vllm_balance.core.policies import OPEN, Decision
from vllm_balance.core.policies.rows import Snapshot
from vllm_balance.simulator.policies import Controller

from . import HOLD


class VLLMInterval:
    """vLLM's --prefill-schedule-interval, with its guard against saturation.

    All ranks prefill in one step of `interval`. Between them a rank holds while it
    decodes, unless requests were left waiting on it when it could last prefill.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self.reset()

    def reset(self) -> None:
        """Ends a wave."""
        self._decisions: Sequence[Decision] = ()
        self._saturated: list[bool] = []

    def decide(self, snapshot: Snapshot) -> Sequence[Decision]:
        """A decision for each rank."""
        ranks = range(len(snapshot.step))
        before = self._decisions or [OPEN for _ in ranks]
        saturated = self._saturated or [False for _ in ranks]
        self._saturated = [
            snapshot.waiting[rank] > 0 if before[rank] is OPEN else saturated[rank]
            for rank in ranks
        ]
        is_aligned = snapshot.step[0] % self._interval == 0
        self._decisions = [
            OPEN if is_aligned or full or not decoding else HOLD
            for full, decoding in zip(self._saturated, snapshot.decoding, strict=True)
        ]
        return self._decisions


class Spaced:
    """SGLang's --prefill-decode-interval: steps of decodes after each prefill."""

    def __init__(self, rule: Controller, interval: int) -> None:
        self._rule, self._interval, self._since = rule, interval, interval

    def reset(self) -> None:
        """Ends a wave."""
        self._rule.reset()
        self._since = self._interval

    def decide(self, snapshot: Snapshot) -> Decision:
        """One decision for all ranks."""
        self._since = 0 if any(snapshot.prefill_tokens) else self._since + 1
        if self._since < self._interval and any(snapshot.decoding):
            return HOLD
        return self._rule.decide(snapshot)
