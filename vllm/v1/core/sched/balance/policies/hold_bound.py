# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Bounds every hold of every policy, in steps."""

from .decision import Decision, Learned, Policy
from .rows import Snapshot

MAX_HOLD_STEPS = 1000
"""Default bound of every hold, in steps; `adaptive` has one in time, too."""

BOUND_REACHED = "hold_bound"
"""The reason of what is released then."""


class HoldBound:
    """A policy whose holds end after `max_hold_steps`, whatever it decides.

    Each rank reports for how many steps in a row it has held an admissible request
    (`Row.held_steps`, counted from when it could have been admitted, not from its
    arrival). When the longest reaches the bound, all ranks schedule one step as if
    there were no balance scheduling.
    """

    def __init__(self, policy: Policy, max_hold_steps: int) -> None:
        if max_hold_steps < 1:
            raise ValueError(f"max_hold_steps must be 1 or more, not {max_hold_steps}")
        self._policy = policy
        self._max_hold_steps = max_hold_steps

    @property
    def learned(self) -> Learned | None:
        """What the policy knows of the device."""
        return self._policy.learned

    def decide(self, snapshot: Snapshot) -> Decision:
        """The policy's decision, or a release if a hold has reached the bound.

        The policy sees every snapshot, also those that it does not decide on.
        """
        decision = self._policy.decide(snapshot)
        if max(snapshot.held_steps) >= self._max_hold_steps:
            return decision.opened(BOUND_REACHED)
        return decision

    def reset(self) -> None:
        """Resets the policy; the bound itself remembers nothing."""
        self._policy.reset()
