"""The rivals by the names that results, tables and programs call them by."""

from collections.abc import Callable, Mapping
from functools import partial

from vllm_balance.core.policies import Decision
from vllm_balance.core.policies.in_flight import StepsInFlight
from vllm_balance.core.policies.rows import Snapshot
from vllm_balance.simulator.policies import Controller, MakeController

from .atom import AtomCoalescer
from .exhaustive import ExhaustiveCycle
from .sglang import SGLangDelayer, SGLangDelayer0523


class _Timed:
    """A rule that is told the prompt tokens of the step that a time is of."""

    def __init__(self, make: Callable[[], Controller], in_flight: int) -> None:
        self._rule, self._steps = make(), StepsInFlight(in_flight)

    def decide(self, snapshot: Snapshot) -> Decision:
        """As the rule does."""
        return self._rule.decide(self._steps.timed(snapshot))

    def reset(self) -> None:
        """A wave has ended."""
        self._rule.reset()
        self._steps.reset()


_RULES: Mapping[str, Callable[[], Controller]] = {
    "sglang-30": partial(SGLangDelayer, 30),
    "sglang-100": partial(SGLangDelayer, 100),
    "sglang-200": partial(SGLangDelayer, 200),
    "sglang23-30": partial(SGLangDelayer0523, 30),
    "sglang23-200": partial(SGLangDelayer0523, 200),
    "atom": AtomCoalescer,
    "eb": ExhaustiveCycle,
}
CONTROLLERS: Mapping[str, MakeController] = {
    name: partial(_Timed, make) for name, make in _RULES.items()
}
"""Rules that hold prompts; of SGLang's by how many passes they do at most."""
