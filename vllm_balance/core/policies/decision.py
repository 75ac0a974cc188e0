# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a policy decides, and what a policy is."""

from typing import NamedTuple, Protocol

from .cost import StepCost
from .rows import Snapshot


class Decision(NamedTuple):
    """What every rank may do in the next step."""

    admit: bool
    """Whether waiting requests may be admitted."""
    prefill_budget: int | None
    """Prompt tokens that a rank may schedule, of prompts in progress and of
    admissions together; None for no limit beyond the scheduler's own. With
    `cost_per_attended`, in tokens as at the beginning of a prompt, and None is
    a `whole_step`."""
    reason: str
    """Why, as a label for metrics."""
    cost_per_attended: float = 0.0
    """What a prompt token costs more for each that it attends to."""
    least: int = 1
    """Tokens below which attention cuts no chunk."""

    def opened(self, reason: str) -> "Decision":
        """As if there were no balance scheduling, but with its cuts."""
        return self._replace(admit=True, prefill_budget=None, reason=reason)


OPEN = Decision(admit=True, prefill_budget=None, reason="open")
"""Schedule as if there were no balance scheduling."""


class Learned(NamedTuple):
    cost: StepCost
    """What steps take."""
    resets: int
    """How often it was forgotten because it was no longer so."""


class Policy(Protocol):
    """Takes one decision per step, the same one on every rank.

    A policy may remember snapshots and nothing else: no clock, no randomness, nothing
    of the rank it runs on. All ranks of a group start with equal policies and show
    them the same snapshots, so they decide alike. A new group gets new policies.
    """

    @property
    def learned(self) -> Learned | None: ...

    def decide(self, snapshot: Snapshot) -> Decision: ...

    def reset(self) -> None:
        """Forgets the requests of a wave that has ended.

        What was learned about the device and the traffic may stay: all ranks learned
        it together.
        """
