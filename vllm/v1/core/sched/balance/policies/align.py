# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Policy `align`: hold prefills until every rank has one."""

from dataclasses import dataclass

from .decision import OPEN, Decision
from .rows import Snapshot

_HOLD_FOR_OTHERS = Decision(admit=False, prefill_budget=0, reason="wait_for_ranks")
_HOLD_FOR_BATCH = Decision(admit=False, prefill_budget=0, reason="wait_for_batch")


@dataclass(frozen=True)
class AlignParameters:
    """Parameters of `Align`, both in steps."""

    timeout_steps: int = 50
    """How long pending requests wait for a rank that has none."""
    batching_steps: int = 10
    """How long they then wait for more requests, once every rank has some."""

    def __post_init__(self) -> None:
        if self.timeout_steps < 1:
            raise ValueError(
                f"timeout_steps must be 1 or more, not {self.timeout_steps}"
            )
        if self.batching_steps < 0:
            raise ValueError(
                f"batching_steps must be 0 or more, not {self.batching_steps}"
            )


class Align:
    """The rule of TensorRT-LLM's attention data parallel balance (#6061).

    While some rank has nothing pending, nobody prefills; after `timeout_steps` of
    that, everybody does. Once every rank has something pending, `batching_steps`
    more pass before all prefill together. A rank that decodes nothing ends
    either wait: it would idle. So a hold lasts at most
    ``timeout_steps - 1 + batching_steps`` steps between two releases.

    There are three differences. TensorRT-LLM counts the time-out also while no rank
    has anything pending, so that it may release the first arrival at once; it pads a
    rank without requests with one that counts as decoding; and where a rank decodes
    nothing, its release does not start `batching_steps` anew.
    """

    learned = None

    def __init__(self, parameters: AlignParameters) -> None:
        self._parameters = parameters
        self._waited = 0
        self._batched = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        """Depends on the snapshots since the last release."""
        if not any(snapshot.pending):
            # An arrival must not slip in before the ranks have seen it.
            return _HOLD_FOR_OTHERS if any(snapshot.running) else OPEN
        rank_idles = not all(snapshot.decoding)
        if all(snapshot.pending):
            self._waited = 0
            if not rank_idles and self._batched < self._parameters.batching_steps:
                self._batched += 1
                return _HOLD_FOR_BATCH
            self._batched = 0
            return OPEN._replace(reason="idle" if rank_idles else "aligned")
        self._waited += 1
        if rank_idles or self._waited >= self._parameters.timeout_steps:
            self._waited = 0
            return OPEN._replace(reason="idle" if rank_idles else "timeout")
        return _HOLD_FOR_OTHERS

    def reset(self) -> None:
        """Starts both waits anew."""
        self._waited = 0
        self._batched = 0
