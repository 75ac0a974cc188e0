# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How much prefill a decision allows one rank in one step.

The permit of a real scheduler and the simulator's ranks both ask it, prompt by prompt.
"""

import sys

from .policies.cost import cost_of, tokens_within, whole_step
from .policies.decision import Decision


class Allowance:
    """What is left of a decision's prefill budget, as one prompt after another takes.

    Admissions and prompts in progress share the budget. A prompt that is cut takes all
    that is left: the rest would be part of a token.
    """

    __slots__ = ("_least", "_left", "_price", "stops_admission")

    def __init__(self, decision: Decision, max_tokens: int) -> None:
        admits, budget, _, self._price, self._least = decision
        left: float = sys.maxsize if budget is None else budget
        if budget is None and self._price:
            left = whole_step(max_tokens, self._price)
        self._left = left
        self.stops_admission = not admits or left < 1
        """Whether a waiting request must not be admitted."""

    def take(self, position: int, wanted: int) -> int:
        """Takes of the `wanted` tokens behind `position` as many as may be computed."""
        left, price = self._left, self._price
        if left < 1:
            return 0
        cost = cost_of(position, wanted, price)
        if cost <= left:
            self._spend(cost)
            return wanted
        self._spend(left)
        return tokens_within(left, position, wanted, price, self._least)

    def take_whole(self, position: int, wanted: int) -> None:
        """Takes a part of a prompt that must not be cut, also if less is left."""
        self._spend(cost_of(position, wanted, self._price))

    def _spend(self, cost: float) -> None:
        self._left -= cost
        if self._left < 1:
            self.stops_admission = True


def least_tokens(others_run: bool) -> int:
    """What a held prompt in progress computes all the same: one token, or none.

    A rank that schedules nothing makes a dummy step, which is for ranks without
    requests: some models could read or write the state of a request that is there.
    """
    return 0 if others_run else 1
