# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Fits the cost model to measured steps, and says how sure each constant is.

The model is linear once it is known which rank is the slowest in each step, and the
slowest ranks follow from the constants: the two are computed in turn. How many tokens
read all experts is not linear: some numbers are tried.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .model import CostModel
from .regression import COLUMNS, EXPERTS_TOKENS, Regression, Samples
from .steps import StepSample

PHI_TOLERANCE = 0.1
"""A share known no better than this is no knowledge: it gets a range."""
PHI_GRID = tuple(i / 20 for i in range(20))
"""The shares that are tried; a whole prefill is never shared."""
CLEARLY_BETTER = 0.9
"""Residual with another constant, as a share of the one without."""
CHI2_95 = 3.84
"""Of one degree of freedom."""
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
    context: Estimate
    attention: Estimate
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
    "shared": "the ranks' shares of prefill hardly vary between steps",
    "c": "the prompt tokens of prefilling steps hardly vary; taken as 0, its cost is "
    "in b",
    "a": "the number of decodes hardly varies; taken as 0, its cost is in t0",
    "own": "too few steps prefill; taken as 0",
    "context": "it hardly varies beside the number of decodes; taken as 0",
    "attention": "it hardly varies beside the prompt tokens; taken as 0",
    "experts": "few tokens hardly cost less than their share; taken as 0",
}


def fit(samples: Sequence[StepSample], host_seconds: float = 0.0) -> Fit:
    """Fits the model.

    Args:
        samples: measured steps; at least some dozens.
        host_seconds: mean time between two steps.
    """
    data = Samples.of(samples)
    solution, notes = _simplest(data)
    own, shared = solution.value("own"), solution.value("shared")
    names = [*solution.names, *({"own", "shared"} - set(solution.names))]
    phis = _phi_range(data, names, solution.experts_tokens)
    phi_error = Z95 * solution.error_of_phi()
    note = notes.get("shared", "")
    if not note and (not own or phis[-1] - phis[0] > 2 * PHI_TOLERANCE):
        note = NOTES["shared"]
    if note:
        note = f"{note}; {phis[0]:g} to {phis[-1]:g} fit about as well"
    costs = [solution] if not note else [
        Regression(data, names, solution.experts_tokens, phi)
        for phi in (phis[0], phis[-1])
    ]  # fmt: skip
    return Fit(
        t0=_estimate(solution, "t0", notes),
        a=_estimate(solution, "a", notes),
        b=Estimate(own + shared, Z95 * solution.error_of_sum(), notes.get("own", "")),
        c=_estimate(solution, "c", notes),
        context=_estimate(solution, "context", notes),
        attention=_estimate(solution, "attention", notes),
        experts=_estimate(solution, "experts", notes),
        phi=Estimate(
            shared / (own + shared) if own + shared else 0.0,
            (phis[-1] - phis[0]) / 2 if note else phi_error,
            note,
        ),
        experts_tokens=solution.experts_tokens,
        steps=len(samples),
        residual=solution.residual / data.mean_step,
        host_seconds=host_seconds,
        costs=tuple(_cost(found, host_seconds) for found in costs),
        most_decodes=float(data.decodes.max()),
        most_prefill=float(data.prefill.max()),
        ranks=data.prefill.shape[1],
    )


def _simplest(data: Samples) -> tuple[Regression, dict[str, str]]:
    """The best fit without experts, unless one with them is clearly better.

    They can pass for a part of the cost of decodes.
    """
    active = [name for name in COLUMNS if data.has(name)]
    plain = [name for name in active if name != "experts"]
    without = _reduced(data, plain, EXPERTS_TOKENS[-1])
    found = min(
        (_reduced(data, active, tokens) for tokens in EXPERTS_TOKENS),
        key=lambda candidate: candidate[0].residual,
    )
    if found[0].residual < CLEARLY_BETTER * without[0].residual:
        return found
    return without[0], {"experts": NOTES["experts"]} | without[1]


def _reduced(
    data: Samples, active: list[str], tokens: float
) -> tuple[Regression, dict[str, str]]:
    """Gives up constants that the data cannot tell, the worst first."""
    notes: dict[str, str] = {}
    active = active.copy()
    while True:
        solution = Regression(data, active, tokens)
        worst = _least_known(solution, float(data.seconds.mean()))
        if worst is None:
            return solution, notes
        active.remove(worst)
        notes[worst] = NOTES[worst]


def _least_known(solution: Regression, interval: float) -> str | None:
    """The constant to give up because the data cannot tell it; None if none."""
    if "shared" in solution.names and not math.isfinite(solution.error_of_phi()):
        return "shared"
    for name in ("attention", "context", "experts", "c", "a", "own"):
        half_width = Z95 * solution.error(name)
        if (
            name in solution.names
            and half_width > RELATIVE_TOLERANCE * solution.value(name)
            and half_width * solution.scale(name) > STEP_TOLERANCE * interval
        ):
            return name
    return None


def _phi_range(
    data: Samples, names: Sequence[str], experts_tokens: float
) -> list[float]:
    """The shares that fit about as well as the best.

    By the likelihood of normal errors, as many as there are measured intervals.
    """
    tried = {
        phi: Regression(data, names, experts_tokens, phi).residual for phi in PHI_GRID
    }
    least = min(tried.values())
    if not least:
        return [phi for phi, residual in tried.items() if not residual]
    worst = least * math.exp(CHI2_95 / data.intervals / 2)
    return [phi for phi, residual in tried.items() if residual <= worst]


def _estimate(solution: Regression, name: str, notes: dict[str, str]) -> Estimate:
    missing = "fits best as 0" if name in COLUMNS[:5] else ""
    note = notes.get(name, "" if name in solution.names else missing)
    return Estimate(solution.value(name), Z95 * solution.error(name), note)


def _cost(solution: Regression, host_seconds: float) -> CostModel:
    own, shared = solution.value("own"), solution.value("shared")
    return CostModel(
        t0=solution.value("t0") + host_seconds or 1e-6,
        a=solution.value("a"),
        b=own + shared,
        c=solution.value("c"),
        context=solution.value("context"),
        attention=solution.value("attention"),
        experts=solution.value("experts"),
        experts_tokens=solution.experts_tokens,
        phi=shared / (own + shared) if own + shared else 0.0,
    )
