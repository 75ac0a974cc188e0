# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Policies by name: those of the balance package, and baselines to compare with."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from vllm.v1.core.sched.balance.policies.registry import (
    POLICIES,
    Decision,
    create_policy,
)
from vllm.v1.core.sched.balance.policies.rows import Snapshot

from .errors import UsageError
from .rivals.atom import AtomCoalescer
from .rivals.exhaustive import ExhaustiveCycle
from .rivals.sglang import SGLangDelayer, SGLangDelayer0523


class Controller(Protocol):
    """Takes the decision of a step from the rows of all ranks.

    Every policy of the balance package is one.
    """

    def decide(self, snapshot: Snapshot) -> Decision | Sequence[Decision]:
        """One decision for all ranks, or one per rank."""
        ...

    def reset(self) -> None:
        """A wave has ended."""
        ...


OWN = ("off", *POLICIES)
"""The values of `--data-parallel-balance`."""

_WITH_N: Mapping[str, Callable[..., Controller]] = {
    "sglang": SGLangDelayer,
    "sglang23": SGLangDelayer0523,
}
_OTHERS: Mapping[str, Callable[..., Controller]] = {
    "atom": AtomCoalescer,
    "eb": ExhaustiveCycle,
}
BASELINES = (*(f"{name}-N" for name in _WITH_N), *_OTHERS)
"""Rules of other systems, N in steps; see `rivals`."""


MOST = 1_000_000
"""Of a parameter, in steps, requests or seconds."""


class PolicySpec(NamedTuple):
    """A policy as named on the command line, `NAME[:PARAMETER=NUMBER,...]`."""

    name: str
    parameters: dict[str, float]

    @classmethod
    def parse(cls, text: str) -> "PolicySpec":
        """Reads the text.

        Raises:
            UsageError: it has no such form.
        """
        name, colon, rest = text.partition(":")
        parameters: dict[str, float] = {}
        for item in rest.split(",") if colon else ():
            parameter, _, value = item.partition("=")
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if not 0 <= number <= MOST or parameter in parameters:
                raise UsageError(
                    f"--policy {text}: {item!r} is not PARAMETER=NUMBER, 0 to {MOST}, "
                    "each once."
                )
            parameters[parameter] = int(number) if number.is_integer() else number
        return cls(name, parameters)


BALANCE = "--data-parallel-balance"
"""The option of `vllm serve`."""


def server_options(text: str) -> list[str]:
    """The options of `vllm serve` that make a policy that is named as in `PolicySpec`.

    Raises:
        UsageError: no server has it.
    """
    spec = PolicySpec.parse(text)
    if spec.name not in OWN or spec.parameters:
        raise UsageError(
            f"--policy {text}: a server has {', '.join(OWN)}, without parameters; "
            "simulate compares others."
        )
    return [BALANCE, spec.name]


def _refuse_fractions(
    takes: Callable[..., object], parameters: Mapping[str, float]
) -> None:
    for name, parameter in inspect.signature(takes).parameters.items():
        value = parameters.get(name, 0)
        if parameter.annotation is int and not isinstance(value, int):
            raise ValueError(f"{name} must be a whole number, not {value}")


def make_controller(text: str) -> Controller | None:
    """The policy of that name; None for "off", which exchanges nothing.

    Raises:
        UsageError: there is none of that name, or not with these parameters.
    """
    name, parameters = PolicySpec.parse(text)
    kind, _, number = name.rpartition("-")
    steps = int(number) if number.isdecimal() and len(number) < 7 else 0
    try:
        if name in POLICIES:
            _refuse_fractions(POLICIES[name][1], parameters)
            return create_policy(name, parameters)
        if name in _OTHERS:
            return _OTHERS[name](**parameters)
        if kind in _WITH_N and steps:
            _refuse_fractions(_WITH_N[kind], parameters)
            return _WITH_N[kind](steps, **parameters)
    except TypeError:
        raise UsageError(f"--policy {text}: {name} has no such parameters.") from None
    except ValueError as error:
        raise UsageError(f"--policy {text}: {error}.") from None
    if name != "off":
        names = ", ".join(OWN + BASELINES)
        raise UsageError(
            f"--policy {text}: unknown; choose from {names} (N is 1 to 999999)."
        )
    if parameters:
        raise UsageError(f"--policy {text}: {name} has no such parameters.")
    return None
