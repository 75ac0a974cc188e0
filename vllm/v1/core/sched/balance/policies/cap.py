# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Policy `cap`: nobody admits while the running queue of any rank is full."""

from dataclasses import dataclass

from .decision import OPEN, Decision
from .rows import Snapshot


@dataclass(frozen=True)
class CapParameters:
    """Parameters of `Cap`."""

    margin: int = 0
    """Free places, in requests, at which a running queue counts as full."""

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise ValueError(f"margin must be 0 or more, not {self.margin}")


class Cap:
    """The rule of the vllm-ascend balance scheduler (vllm-ascend #5212).

    Admission freezes while ``running_r >= max_running_r - margin`` on any rank r.
    Margin 0 is the first published form, ``max(running) == max_num_seqs``; margin 1
    the later one, ``max(running) > max_num_seqs - 2``. Prompts in progress go on.
    """

    learned = None

    def __init__(self, parameters: CapParameters) -> None:
        self._margin = parameters.margin

    def decide(self, snapshot: Snapshot) -> Decision:
        """Depends on this snapshot alone."""
        if any(
            running >= limit - self._margin
            for running, limit in zip(
                snapshot.running, snapshot.max_running, strict=True
            )
        ):
            return Decision(admit=False, prefill_budget=None, reason="rank_full")
        return OPEN

    def reset(self) -> None:
        """Nothing to forget."""
