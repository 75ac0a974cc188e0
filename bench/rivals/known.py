"""The rivals, by their names in results, tables and programs."""

from collections.abc import Callable, Mapping
from functools import partial

from vllm_balance.core.policies import Decision
from vllm_balance.core.policies.in_flight import StepsInFlight
from vllm_balance.core.policies.rows import Snapshot
from vllm_balance.core.policies.simple import Align
from vllm_balance.simulator.policies import Controller, MakeController

from .atom import AtomCoalescer
from .intervals import Spaced, VLLMInterval
from .mindie import MindIE, Stage
from .sglang import SGLangDelayer, SGLangDelayer0523


class _Timed:
    """A rule that gets each step's time with the prompt tokens of that step."""

    def __init__(self, make: Callable[[], Controller], in_flight: int) -> None:
        self._rule, self._steps = make(), StepsInFlight(in_flight)

    def decide(self, snapshot: Snapshot) -> Decision:
        return self._rule.decide(self._steps.timed(snapshot))

    def reset(self) -> None:
        """Resets the rule at the end of a wave."""
        self._rule.reset()
        self._steps.reset()


_RULES: Mapping[str, Callable[[], Controller]] = {
    "sglang-100": partial(SGLangDelayer, 100),
    "sglang23-30": partial(SGLangDelayer0523, 30),
    "sglang23-30-10": lambda: Spaced(SGLangDelayer0523(30), 10),
    "tensorrt-60-0": partial(Align, 60, 0),
    "atom": AtomCoalescer,
    "vllm-4": partial(VLLMInterval, 4),
    "vllm-8": partial(VLLMInterval, 8),
    "mindie-waste": partial(MindIE, Stage.WASTE),
    "mindie-laxity": partial(MindIE, Stage.LAXITY),
}
CONTROLLERS: Mapping[str, MakeController] = {
    name: partial(_Timed, make) for name, make in _RULES.items()
}
"""Rules by name; SGLang's names have the largest number of passes that they hold."""
