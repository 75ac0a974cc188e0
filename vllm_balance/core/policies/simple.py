# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The policies `cap` and `align`, which others have published.

Each ends a hold by a time-out of its own, and needs no other bound.
"""

from .decision import OPEN, Decision
from .rows import Snapshot


def _refuse_less(least: int, **parameters: int) -> None:
    for name, value in parameters.items():
        if value < least:
            raise ValueError(f"{name} must be {least} or more, not {value}")


class Cap:
    """The rule of the vllm-ascend balance scheduler (vllm-ascend #5212), with an end.

    Admission freezes while ``running_r >= max_running_r - margin`` on any rank r:
    margin 0 is the first published form, 1 the later one. Prompts in progress go on.
    After `timeout_steps` steps all may admit in one.
    """

    learned = None

    def __init__(self, margin: int = 0, timeout_steps: int = 1000) -> None:
        _refuse_less(0, margin=margin)
        _refuse_less(1, timeout_steps=timeout_steps)
        self._margin, self._timeout_steps = margin, timeout_steps
        self._held = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        limits = zip(snapshot.running, snapshot.max_running, strict=True)
        if not any(running >= limit - self._margin for running, limit in limits):
            self._held = 0
            return OPEN
        if self._held >= self._timeout_steps:
            self._held = 0
            return OPEN._replace(reason="timeout")
        self._held += 1
        return Decision(admit=False, prefill_budget=None, reason="rank_full")

    def reset(self) -> None:
        self._held = 0


_HOLD_FOR_OTHERS = Decision(admit=False, prefill_budget=0, reason="wait_for_ranks")
_HOLD_FOR_BATCH = Decision(admit=False, prefill_budget=0, reason="wait_for_batch")


class Align:
    """The rule of TensorRT-LLM's attention data parallel balance (#6061).

    While some rank has nothing pending, nobody prefills; after `timeout_steps` of
    that, everybody does. Once every rank has something pending, `batching_steps`
    more pass before all prefill together. A rank that decodes nothing ends
    either wait: it would idle. So a hold lasts at most
    ``timeout_steps - 1 + batching_steps`` steps between two releases.

    TensorRT-LLM counts the time-out also while no rank has anything pending, pads a
    rank without requests with one that counts as decoding, and where a rank decodes
    nothing, its release does not start `batching_steps` anew.
    """

    learned = None

    def __init__(self, timeout_steps: int = 50, batching_steps: int = 10) -> None:
        _refuse_less(1, timeout_steps=timeout_steps)
        _refuse_less(0, batching_steps=batching_steps)
        self._timeout_steps, self._batching_steps = timeout_steps, batching_steps
        self._waited = self._batched = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        if not any(snapshot.pending):
            # An arrival must not slip in before the ranks have seen it.
            return _HOLD_FOR_OTHERS if any(snapshot.running) else OPEN
        rank_idles = not all(snapshot.decoding)
        if all(snapshot.pending):
            self._waited = 0
            if not rank_idles and self._batched < self._batching_steps:
                self._batched += 1
                return _HOLD_FOR_BATCH
            self._batched = 0
            return OPEN._replace(reason="idle" if rank_idles else "aligned")
        self._waited += 1
        if rank_idles or self._waited >= self._timeout_steps:
            self._waited = 0
            return OPEN._replace(reason="idle" if rank_idles else "timeout")
        return _HOLD_FOR_OTHERS

    def reset(self) -> None:
        self._waited = self._batched = 0
