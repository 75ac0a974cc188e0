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
    timeout_steps: int = 1000
    """After how many steps without an admission everybody admits in one."""

    def __post_init__(self) -> None:
        if self.timeout_steps < 1:
            raise ValueError(
                f"timeout_steps must be 1 or more, not {self.timeout_steps}"
            )
        if self.margin < 0:
            raise ValueError(f"margin must be 0 or more, not {self.margin}")


class Cap:
    """The rule of the vllm-ascend balance scheduler (vllm-ascend #5212), with an end.

    Admission freezes while ``running_r >= max_running_r - margin`` on any rank r.
    Margin 0 is the first published form, ``max(running) == max_num_seqs``; margin 1
    the later one, ``max(running) > max_num_seqs - 2``. Prompts in progress go on.
    """

    learned = None

    def __init__(self, parameters: CapParameters) -> None:
        self._parameters = parameters
        self._held = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        """Depends on this snapshot, and on how long admission has been frozen."""
        if self._held < self._parameters.timeout_steps and any(
            running >= limit - self._parameters.margin
            for running, limit in zip(
                snapshot.running, snapshot.max_running, strict=True
            )
        ):
            self._held += 1
            return Decision(admit=False, prefill_budget=None, reason="rank_full")
        self._held = 0
        return OPEN

    def reset(self) -> None:
        """Admission is not frozen."""
        self._held = 0
