# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the log says of a policy, each kind of notice at most once a minute."""

import math
from collections import Counter

from vllm.logger import init_logger
from vllm.v1.core.sched.balance.policies.decision import Decision, Learned
from vllm.v1.core.sched.balance.policies.guard import BOUND_REACHED, LOSING

logger = init_logger(__name__)

_PERIOD_S = 60.0


class PolicyLog:
    """Writes the log of one rank; what all ranks know alike, the first one says."""

    def __init__(self, policy: str, rank: int) -> None:
        """Nothing was said yet.

        Args:
            policy: the policy's name.
            rank: this rank's number among the data parallel ones.
        """
        self._policy = policy
        self._is_first = rank == 0
        self._times: Counter[str] = Counter()
        self._said: dict[str, float] = {}
        self._before: str | None = None
        self._set_backs = 0

    def observe(self, decision: Decision, learned: Learned | None, now: float) -> None:
        """Says what is new after a step.

        Args:
            decision: of the ranks.
            learned: what the policy knows of the device.
            now: seconds of a clock that does not go back.
        """
        if decision.reason == BOUND_REACHED and self._is_first:
            self._warn(
                now,
                "has held a request for as long as it may, and lets all ranks schedule "
                "one step as if it were off",
            )
        if decision.reason == LOSING != self._before and self._is_first:
            self._warn(
                now,
                "held requests for longer than that has saved, and lets all ranks "
                "schedule as if it were off for a while",
            )
        self._before = decision.reason
        set_backs = 0 if learned is None else learned.set_backs
        if set_backs > self._set_backs and self._is_first:
            self._warn(now, "learns the costs of a step anew, because they changed")
        self._set_backs = set_backs

    def _warn(self, now: float, text: str) -> None:
        self._times[text] += 1
        if now - self._said.get(text, -math.inf) < _PERIOD_S:
            return
        self._said[text] = now
        logger.warning(
            f"Data parallel balance: policy %s {text}. So far: %d.",
            self._policy,
            self._times[text],
        )
