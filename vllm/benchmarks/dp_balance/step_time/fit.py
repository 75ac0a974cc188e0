# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Fits the cost model to measured steps, and says how sure each constant is.

The model is linear once it is known which rank is the slowest in each step, and the
slowest ranks follow from the constants: the two are computed in turn. Of phi, and of
how many tokens read all experts, some values are tried.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .model import CostModel
from .regression import COLUMNS, Samples, Solution, solve
from .steps import StepSample

EXPERTS_TOKENS = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""What is tried for `CostModel.experts_tokens`."""
COARSE = tuple(i / 20 for i in range(20))
FINE = tuple(i / 100 for i in range(96))
"""The values of phi that are tried; a whole prefill is never shared."""
PHI_TOLERANCE = 0.1
"""A share known no better than this is no knowledge: it gets a range."""
CLEARLY_BETTER = 0.9
"""Residual with another constant, as a share of the one without."""
HALF_CHI2_95 = 1.92
"""Of one degree of freedom: what is less likely by more is outside of the interval."""
RELATIVE_TOLERANCE = 0.5
"""A constant known to this share of itself is identified."""
STEP_TOLERANCE = 0.02
"""So is one whose uncertainty is this share of a step."""
Z95 = 1.96
"""Half width of a 95 % interval, in standard errors."""


@dataclass(frozen=True)
class Estimate:
    """A fitted constant."""

    value: float
    half_width: float
    """Of the 95 % interval."""
    note: str = ""
    """Why the data cannot tell it, and what was assumed; empty if it can."""


@dataclass(frozen=True)
class Fit:
    """The cost model that fits best."""

    t0: Estimate
    a: Estimate
    b: Estimate
    c: Estimate
    experts: Estimate
    phi: Estimate
    experts_tokens: float
    steps: int
    residual: float
    """Standard deviation of measured less fitted, as a share of the mean step."""
    host_seconds: float
    """Time between two steps that is in no step, as measured."""
    costs: tuple[CostModel, ...]
    """Models that the data cannot tell from the best one, by growing phi: one if phi
    is known, else those of the ends of its range."""
    most_decodes: float
    """Of any rank in a step: beyond it the model extrapolates."""
    most_prefill: float
    """Prompt tokens of any rank in a step."""
    ranks: int

    @property
    def cost(self) -> CostModel:
        """As used by the simulator: its steps follow on each other without a gap.

        If phi has a range, the model of its upper end, where policies gain least.
        """
        return self.costs[-1]


NOTES = {
    "experts": "few tokens hardly cost less than their share; taken as 0",
    "c": "the prompt tokens of prefilling steps hardly vary; taken as 0, its cost is "
    "in b",
    "a": "the number of decodes hardly varies; taken as 0, its cost is in t0",
    "b": "too few steps prefill, or all alike",
}
"""Constants in the order in which they are given up, and why."""
NEEDED = {"a": "no step decodes", "b": "no step prefills"}
"""What no simulation can do without: it stays unknown where no step tells it."""


def fit(samples: Sequence[StepSample], host_seconds: float = 0.0) -> Fit:
    """Fits the model.

    Args:
        samples: measured steps; at least some dozens.
        host_seconds: mean time between two steps.
    """
    data = Samples.of(samples)
    names, tokens, notes = _simplest(data)
    tried = {phi: solve(data, names, phi, tokens) for phi in FINE}
    phi, best = _best(tried)
    alike = {
        other: each
        for other, each in tried.items()
        if each.unlikelihood <= best.unlikelihood + HALF_CHI2_95
    }
    low, high = min(alike), max(alike)
    note = ""
    if high - low > 2 * PHI_TOLERANCE:
        note = "the ranks' shares of prefill hardly vary between steps; "
        note += f"{low:g} to {high:g} fit about as well"
    constants = {}
    for name in COLUMNS:
        value = best.values[name]
        # Besides its own error, what the one of phi makes of it.
        by_phi = max(abs(each.values[name] - value) for each in alike.values())
        half_width = Z95 * best.errors[name] + by_phi
        if (name == "b" and name in notes) or notes.get(name) in NEEDED.values():
            value = half_width = math.nan
        constants[name] = Estimate(value, half_width, notes.get(name, ""))
    ends = (low, high) if note else (phi,)
    return Fit(
        **constants,
        phi=Estimate(phi, (high - low) / 2, note),
        experts_tokens=tokens,
        steps=len(samples),
        residual=best.residual / data.mean_step,
        host_seconds=host_seconds,
        costs=tuple(_cost(tried[end], end, tokens, host_seconds) for end in ends),
        most_decodes=float(data.decodes.max()),
        most_prefill=float(data.prefill.max()),
        ranks=data.prefill.shape[1],
    )


def _best(tried: dict[float, Solution]) -> tuple[float, Solution]:
    """The likeliest phi."""
    return min(tried.items(), key=lambda item: item[1].unlikelihood)


def _simplest(data: Samples) -> tuple[list[str], float, dict[str, str]]:
    """The constants to fit: with experts only if that is clearly better.

    They can pass for a part of the cost of decodes.

    Returns:
        Their names, the tokens that read all experts, and notes on what is given up.
    """
    every = [*COLUMNS]
    plain = [name for name in every if name != "experts"]
    phi, _ = _best({phi: solve(data, plain, phi, EXPERTS_TOKENS[-1]) for phi in COARSE})
    tokens = min(
        EXPERTS_TOKENS, key=lambda tokens: solve(data, every, phi, tokens).residual
    )
    without, residual, notes = _reduced(data, plain, EXPERTS_TOKENS[-1])
    with_experts, less, more_notes = _reduced(data, every, tokens)
    if less < CLEARLY_BETTER * residual:
        return with_experts, tokens, more_notes
    return without, EXPERTS_TOKENS[-1], notes | {"experts": NOTES["experts"]}


def _reduced(
    data: Samples, names: list[str], tokens: float
) -> tuple[list[str], float, dict[str, str]]:
    """Gives up constants that the data cannot tell, or that would be below 0.

    Returns:
        The names of the others, their residual, and notes on those.
    """
    notes: dict[str, str] = {}
    while True:
        tried = {phi: solve(data, names, phi, tokens) for phi in COARSE}
        best = _best(tried)[1]
        left = (name for name in NOTES if name in names)
        worst = next((name for name in left if _is_unknown(data, best, name)), None)
        if worst is None:
            return names, best.residual, notes
        names = [name for name in names if name != worst]
        if best.values[worst] < 0:
            notes[worst] = "fits best as 0"
        elif best.scales[worst] == 0:
            notes[worst] = NEEDED.get(worst, f"{NEEDED['b']}; taken as 0")
        else:
            notes[worst] = NOTES[worst]


def _is_unknown(data: Samples, solution: Solution, name: str) -> bool:
    """Whether a constant is below 0, or its error too large for itself and a step."""
    value, half_width = solution.values[name], Z95 * solution.errors[name]
    if solution.scales[name] == 0:
        return True  # no step has any
    is_large = half_width * solution.scales[name] > STEP_TOLERANCE * data.seconds.mean()
    return value < 0 or (half_width > RELATIVE_TOLERANCE * value and bool(is_large))


def _cost(
    solution: Solution, phi: float, experts_tokens: float, host_seconds: float
) -> CostModel:
    values = {name: max(0.0, value) for name, value in solution.values.items()}
    values["t0"] = values["t0"] + host_seconds or 1e-6
    return CostModel(**values, experts_tokens=experts_tokens, phi=phi)
