# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Policies by name: those of the balance package, and rivals to compare them with."""

from collections.abc import Callable, Sequence
from typing import Protocol

from vllm.v1.core.sched.balance.policy import POLICIES, Decision
from vllm.v1.core.sched.balance.rows import Snapshot

from .errors import UsageError
from .rivals import IntervalPolicy, SGLangDelayer


class Controller(Protocol):
    """Takes the decision of a step from the rows of all ranks."""

    def decide(self, snapshot: Snapshot) -> Decision | Sequence[Decision]:
        """One decision for all ranks, or one per rank."""
        ...

    def reset(self) -> None:
        """A wave has ended."""
        ...


class _Stateless:
    """A policy that is a pure function of the snapshot."""

    def __init__(self, policy: Callable[[Snapshot], Decision]) -> None:
        self.decide = policy

    def reset(self) -> None:
        """Nothing to forget."""


OWN = ("off", *POLICIES)
"""The values of `--data-parallel-balance`."""

RIVALS = ("interval-N", "sglang-N")
"""Rules of other systems, N in steps; see `rivals`."""


def make_controller(name: str) -> Controller | None:
    """The policy of that name; None for "off", which exchanges nothing.

    Raises:
        UsageError: there is none of that name.
    """
    if name == "off":
        return None
    if name in POLICIES:
        return _Stateless(POLICIES[name])
    kind, _, number = name.partition("-")
    if number.isdecimal() and int(number) > 0:
        if kind == "interval":
            return IntervalPolicy(int(number))
        if kind == "sglang":
            return SGLangDelayer(int(number))
    raise UsageError(
        f"--policy {name}: unknown; choose from {', '.join(OWN + RIVALS)} (N steps, "
        "1 or more)."
    )
