# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a decision allows the scheduler in one step."""

import sys
from typing import TYPE_CHECKING

from vllm.v1.core.sched.balance.decision import OPEN, Decision
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


class PrefillPermit:
    """Holds and clips the prefills of a step, and knows what became of them.

    Requests whose KV cache came from a connector are never held: next to nothing of
    their prompts is left to compute.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler = scheduler
        self.apply(OPEN)

    def apply(self, decision: Decision) -> None:
        """Begins a step."""
        self.decision = decision
        budget = decision.prefill_budget
        self._budget_left = sys.maxsize if budget is None else budget
        self._clipped: list[tuple[Request, int, int]] = []
        self.held = False

    def holds(self, request: Request) -> bool:
        """Whether a waiting request must not be admitted in this step."""
        if self._is_exempt(request):
            return False
        if self.decision.admit and self._budget_left > 0:
            return False
        self.held = True
        return True

    def clip(self, request: Request, num_new_tokens: int) -> int:
        """How many of the prompt tokens may be scheduled in this step.

        Args:
            request: a prompt in progress, or a request that `holds` let pass.
            num_new_tokens: what the scheduler would schedule, at least 1.

        Returns:
            A number from 0 to num_new_tokens; at least 1 for a request that
            `holds` let pass.
        """
        chunked = self._scheduler.scheduler_config.enable_chunked_prefill
        if chunked and not self._is_exempt(request):
            num_new_tokens = min(num_new_tokens, self._budget_left)
        self.held |= num_new_tokens == 0
        self._budget_left = max(0, self._budget_left - num_new_tokens)
        self._clipped.append((request, request.num_computed_tokens, num_new_tokens))
        return num_new_tokens

    def prefilled(self) -> int:
        """Prompt tokens of the step. A request that the scheduler asked for need not
        have been scheduled: the KV cache may have been full."""
        return sum(
            tokens
            for request, before, tokens in self._clipped
            if request.num_computed_tokens > before
        )

    @staticmethod
    def _is_exempt(request: Request) -> bool:
        # A preempted request has lost what was computed.
        return (
            request.status != RequestStatus.RUNNING and request.num_computed_tokens > 0
        )
