# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The policies by the value of `--data-parallel-balance`.

Each decides, from the rows of all ranks, what every rank may prefill in the next step.
Pure Python: no torch, no vllm import, no clock, no randomness.
"""

from collections.abc import Callable, Mapping
from inspect import signature

from .adaptive import NO_LIMITS, Adaptive, LatencyLimits
from .decision import OPEN, Decision, Policy
from .guard import Guard
from .simple import Align, Cap

__all__ = [
    "ALONE",
    "NO_LIMITS",
    "OPEN",
    "POLICIES",
    "SHORT_FIRST",
    "Decision",
    "LatencyLimits",
    "Policy",
    "create_policy",
]

POLICIES: dict[str, Callable[..., Policy]] = {
    "cap": Cap,
    "align": Align,
    "adaptive": Adaptive,
}
"""A factory for each policy, which takes its parameters; "off" has none."""

SHORT_FIRST = frozenset({"adaptive"})
"""Policies with which short prompts pass long ones; see `order.py`."""

ALONE = frozenset({"adaptive"})
"""Policies that gain something where no rank waits for another."""


def create_policy(
    name: str,
    parameters: Mapping[str, object] | None = None,
    in_flight: int = 1,
    limits: LatencyLimits = NO_LIMITS,
) -> Policy:
    """A new policy, whose holds are bounded.

    Args:
        name: one of `POLICIES`.
        parameters: of the policy.
        in_flight: steps that an engine schedules before the first has ended.
        limits: kept by `adaptive`.

    Raises:
        ValueError: the policy has no such parameter, or not with that value.
    """
    known = signature(POLICIES[name]).parameters
    for parameter in parameters or ():
        if parameter not in known:
            raise ValueError(
                f"{parameter!r} is not a parameter of balance policy {name!r}; "
                f"it has {', '.join(known) or 'none'}"
            )
    policy = POLICIES[name](**(parameters or {}))
    if not isinstance(policy, Adaptive):
        return policy
    policy.limits = limits
    return Guard(policy, in_flight)
