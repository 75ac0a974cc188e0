# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Policies by name: those of the balance package, and rules of other engines."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from vllm.v1.core.sched.balance.core.policies import (
    POLICIES,
    Decision,
    create_policy,
)
from vllm.v1.core.sched.balance.core.policies.in_flight import StepsInFlight
from vllm.v1.core.sched.balance.core.policies.rows import Snapshot

from .errors import UsageError
from .rivals.atom import AtomCoalescer
from .rivals.exhaustive import ExhaustiveCycle
from .rivals.sglang import SGLangDelayer, SGLangDelayer0523

BALANCE = "--data-parallel-balance"
"""The option of `vllm serve`."""


class Controller(Protocol):
    """Decides a step from the rows of all ranks, as every policy of the package."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """One decision for all ranks."""
        ...

    def reset(self) -> None:
        """A wave has ended."""
        ...


OWN = ("off", *POLICIES)
"""The values of `BALANCE`."""

_RIVALS: Mapping[str, Callable[..., Controller]] = {
    "sglang-N": SGLangDelayer,
    "sglang23-N": SGLangDelayer0523,
    "atom": AtomCoalescer,
    "eb": ExhaustiveCycle,
}
RIVALS = tuple(_RIVALS)
"""Rules of other engines, N in steps; see `rivals`."""
MOST = 999_999
"""Of N and of a parameter."""


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
        name, colon, rest = text.partition(":")
        parameters: dict[str, int] = {}
        for item in rest.split(",") if colon else ():
            parameter, _, value = item.partition("=")
            if not _is_number(value) or parameter in parameters:
                raise UsageError(
                    f"--policy {text}: {item!r} is not PARAMETER=NUMBER, a whole "
                    f"number from 0 to {MOST}, each once."
                )
            parameters[parameter] = int(value)
        return cls(name, parameters)


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= len(str(MOST))


def server_options(text: str) -> list[str]:
    """The options of `vllm serve` that make a policy.

    Raises:
        UsageError: no server has it.
    """
    if text not in OWN:
        raise UsageError(
            f"--policy {text}: a server has {', '.join(OWN)}, without parameters; "
            "simulate compares others."
        )
    return [BALANCE, text]


class _Timed:
    """A rule that is told the prompt tokens of the step that a time is of."""

    def __init__(self, rule: Controller, in_flight: int) -> None:
        self._rule, self._steps = rule, StepsInFlight(in_flight)

    def decide(self, snapshot: Snapshot) -> Decision:
        return self._rule.decide(self._steps.timed(snapshot))

    def reset(self) -> None:
        self._rule.reset()
        self._steps.reset()


def make_controller(text: str, in_flight: int = 1) -> Controller | None:
    """The policy that `PolicySpec` describes; None for "off", which exchanges nothing.

    `in_flight` steps are scheduled before the first of them has ended.

    Raises:
        UsageError: there is none of that name, or not with these parameters.
    """
    name, parameters = PolicySpec.parse(text)
    kind, _, number = name.rpartition("-")
    has_number = _is_number(number) and int(number) > 0
    rival = _RIVALS.get(f"{kind}-N" if has_number else name)
    if name not in OWN and (rival is None or name.endswith("-N")):
        names = ", ".join(OWN + RIVALS)
        raise UsageError(
            f"--policy {text}: unknown; choose from {names} (N is 1 to {MOST})."
        )
    try:
        if name in POLICIES:
            return create_policy(name, parameters, in_flight)
        if parameters:
            raise ValueError(f"{name} has no parameters")
    except ValueError as error:
        raise UsageError(f"--policy {text}: {error}.") from None
    if rival is None:
        return None
    return _Timed(rival(int(number)) if has_number else rival(), in_flight)
