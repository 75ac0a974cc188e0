# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The attention data parallel balance of TensorRT-LLM, to compare ours with.

As of its main branch in August 2026 (#6061).
The policy `align` is made after #6061 and differs: here a rank without any request ends
no wait, for its padding counts as decoding; the first counter runs also while nothing
is pending; and a release for a rank that decodes nothing leaves the second as it is.
Where requests go is not modelled: there a router deals them out from one queue.

Its chunks of equal cost (#18528, from reading) are cut as ours: n tokens at position p
cost n·(kv_cost_offset + p + n/2), there without n/2, and all that a rank computes in a
step at most what a full step does that begins at `kv_depth_threshold`.
"""

import math

from vllm.v1.core.sched.balance.policies.attention_cost import cost_of
from vllm.v1.core.sched.balance.policies.registry import OPEN, Decision
from vllm.v1.core.sched.balance.policies.rows import Snapshot

from . import HOLD


class AttentionDpBalance:
    """All ranks at once; they decide alike."""

    def __init__(
        self,
        timeout_iters: int = 50,
        batching_wait_iters: int = 10,
        kv_cost_offset: int = 0,
        kv_depth_threshold: int = 0,
    ) -> None:
        """Named as in TensorRT-LLM's `attention_dp_config` and environment variables.

        Args:
            timeout_iters: steps that prompts wait for ranks that have none.
            batching_wait_iters: steps that they then wait for more of them.
            kv_cost_offset: tokens of context at which a token costs twice as much as
                at the beginning; 0 for full steps.
            kv_depth_threshold: tokens of context up to which steps are full.
        """
        self._timeout, self._batching_wait = timeout_iters, batching_wait_iters
        self._attention = 1 / kv_cost_offset if kv_cost_offset else 0.0
        self._full_until = kv_depth_threshold
        self.reset()

    def reset(self) -> None:
        """A wave has ended. TensorRT-LLM, which has none, keeps its counters."""
        self._waited = self._batched = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        """One decision for all ranks."""
        decision, attention = self._decide(snapshot), self._attention
        if not attention or not decision.admit:
            return decision
        full = cost_of(self._full_until, max(snapshot.max_tokens), attention)
        return decision._replace(
            prefill_budget=math.ceil(full), cost_per_attended=attention
        )

    def _decide(self, snapshot: Snapshot) -> Decision:
        if not any(snapshot.running) and not any(snapshot.waiting):
            return OPEN
        # A rank without requests is padded with one that counts as decoding.
        all_decode = all(
            decoding or not (running or waiting)
            for decoding, running, waiting in zip(
                snapshot.decoding, snapshot.running, snapshot.waiting, strict=True
            )
        )
        have_slots = all(map(int.__lt__, snapshot.decoding, snapshot.max_running))
        if have_slots and all(snapshot.pending):
            self._waited = 0
            if all_decode:
                if self._batched < self._batching_wait:
                    self._batched += 1
                    return HOLD
                self._batched = 0
            return OPEN
        self._waited += 1
        if all_decode and self._waited < self._timeout:
            return HOLD
        self._waited = 0
        return OPEN
