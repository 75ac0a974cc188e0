# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Policies by name, as a server has them or with parameters."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from vllm_balance.core.policies import (
    NO_LIMITS,
    POLICIES,
    Decision,
    LatencyLimits,
    create_policy,
)
from vllm_balance.core.policies.rows import Snapshot

from ..errors import UsageError

BALANCE = "--data-parallel-balance"
"""The option of `vllm serve` that names the policy."""


class Controller(Protocol):
    """Decides a step from the rows of all ranks, as every policy of the package."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """One decision for all ranks."""
        ...

    def reset(self) -> None:
        """Ends a wave."""
        ...


SERVED_POLICIES = ("off", *POLICIES)
"""The values of `BALANCE`."""

MakeController = Callable[[int], Controller]
"""Makes a controller for a number of steps in flight."""

MAX_PARAMETER = 999_999
"""The largest value of a parameter."""


class PolicySpec(NamedTuple):
    """A policy as named on the command line, `NAME[:PARAMETER=NUMBER,...]`."""

    name: str
    parameters: dict[str, int]

    @classmethod
    def parse(cls, text: str) -> "PolicySpec":
        """Reads the text.

        Raises:
            UsageError: it has no such form.
        """
        name, colon, parts = text.partition(":")
        parameters: dict[str, int] = {}
        for item in parts.split(",") if colon else ():
            parameter, _, value = item.partition("=")
            if not _is_number(value) or parameter in parameters:
                raise UsageError(
                    f"--policy {text}: {item!r} is not PARAMETER=NUMBER, a whole "
                    f"number from 0 to {MAX_PARAMETER}, each once."
                )
            parameters[parameter] = int(value)
        return cls(name, parameters)


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= len(str(MAX_PARAMETER))


def server_options(text: str, limits: LatencyLimits = NO_LIMITS) -> list[str]:
    """The options of `vllm serve` that make a policy.

    Raises:
        UsageError: no server has it.
    """
    if text not in SERVED_POLICIES:
        raise UsageError(
            f"--policy {text}: a server has {', '.join(SERVED_POLICIES)}, without "
            "parameters."
        )
    options = [BALANCE, text]
    for name, limit in limits._asdict().items():
        if limit and text == "adaptive":
            options += [f"{BALANCE}-{name}-ms", f"{1e3 * limit:g}"]
    return options


def make_controller(
    text: str,
    in_flight: int = 1,
    controllers: Mapping[str, MakeController] = {},
    limits: LatencyLimits = NO_LIMITS,
) -> Controller | None:
    """The policy that `PolicySpec` describes; None for "off", which exchanges nothing.

    Args:
        text: what to make.
        in_flight: steps that are scheduled before the first of them has ended.
        controllers: further policies by name, or others instead of a server's.
        limits: for `adaptive` to keep.

    Raises:
        UsageError: there is no policy of that name, or not with these parameters.
    """
    if text in controllers:
        return controllers[text](in_flight)
    name, parameters = PolicySpec.parse(text)
    if name not in SERVED_POLICIES:
        names = ", ".join([*SERVED_POLICIES, *controllers])
        raise UsageError(f"--policy {text}: invalid choice; choose from {names}.")
    try:
        if name in POLICIES:
            return create_policy(name, parameters, in_flight, limits)
        if parameters:
            raise ValueError(f"{name} has no parameters")
    except ValueError as error:
        raise UsageError(f"--policy {text}: {error}.") from None
    return None
