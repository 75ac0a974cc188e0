# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The policies by the value of `--data-parallel-balance`.

Pure Python: no torch, no vllm import, no clock, no randomness.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from .adaptive import Adaptive, AdaptiveParameters
from .align import Align, AlignParameters
from .cap import Cap, CapParameters
from .decision import OPEN, Decision, Policy
from .guard import Guard

__all__ = [
    "OPEN",
    "POLICIES",
    "SHORT_FIRST",
    "Decision",
    "Policy",
    "create_policy",
]


POLICIES: dict[str, tuple[Callable[[Any], Policy], type[Any]]] = {
    "cap": (Cap, CapParameters),
    "align": (Align, AlignParameters),
    "adaptive": (Adaptive, AdaptiveParameters),
    "adaptive-fcfs": (Adaptive, AdaptiveParameters),
}
"""What makes each policy, and its parameters; "off" has none."""

SHORT_FIRST = frozenset({"adaptive"})
"""Those with which short prompts pass long ones; see `order.py`."""


def create_policy(name: str, parameters: Mapping[str, object] | None = None) -> Policy:
    """A new policy, whose holds are bounded.

    Args:
        name: a key of `POLICIES`.
        parameters: fields of the policy's parameters that differ from the defaults.

    Raises:
        ValueError: the policy has no such parameter, or not with that value.
    """
    policy, parameters_of = POLICIES[name]
    known = [field.name for field in fields(parameters_of)]
    for parameter in parameters or ():
        if parameter not in known:
            raise ValueError(
                f"{parameter!r} is not a parameter of balance policy {name!r}; "
                f"it has {', '.join(known)}"
            )
    made = policy(parameters_of(**(parameters or {})))
    return Guard(made) if policy is Adaptive else made
