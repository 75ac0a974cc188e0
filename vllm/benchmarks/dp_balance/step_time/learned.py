# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The cost model as `adaptive` learns it: from steps, on a server, in a trial."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.balance.core.policies.cost import CostFit, StepCost

from ..errors import UsageError
from ..results import read_json
from .model import LEAST_STEP, CostModel, Loads
from .steps import StepSample

OUTLYING = 3.0
"""A step of decodes that lasts so many times the median tells nothing of them."""


def learn(samples: Sequence[StepSample]) -> CostModel:
    """What the fit of `adaptive` makes of the steps, and a line through decodes.

    The fit fades, so the last hundred steps with a prefill count. Attention is not
    in the samples, and stays 0.
    """
    decoding = [sample for sample in samples if not any(sample.prefill)]
    usual = OUTLYING * statistics.median([s.seconds for s in decoding] or [0.0])
    points = [(max(s.decodes), s.seconds) for s in decoding if s.seconds <= usual]
    per_decode = 0.0
    if len({decodes for decodes, _ in points}) > 1:
        slope = statistics.linear_regression(*zip(*points, strict=True)).slope
        per_decode = max(0.0, slope)
    full = max(max(sample.prefill) for sample in samples) or 1.0
    fit = CostFit()
    for sample in samples:
        shares = [tokens / full for tokens in sample.prefill]
        fit = fit.observe(
            max(LEAST_STEP, sample.seconds - per_decode * max(sample.decodes)),
            max(shares),
            statistics.fmean(shares),
            shares.count(0) / len(shares),
        )
    assert fit.cost is not None, "a step without prefill"
    return cost_model(fit.cost, full, per_decode)


def cost_model(cost: StepCost, full: float, per_decode: float = 0.0) -> CostModel:
    """The simulator's, which counts tokens, from the policy's.

    Args:
        cost: says seconds of a full step.
        full: prompt tokens of a full step.
        per_decode: seconds.
    """
    prefill = cost.own + cost.shared
    return CostModel(
        t0=max(LEAST_STEP, cost.decode),
        a=per_decode,
        b=prefill / full,
        c=cost.fixed,
        attention=cost.attention / full**2,
        phi=cost.shared / prefill if prefill else 0.0,
        padded=float(cost.padding > cost.shared / 2),
    )


def predicted(cost: CostModel, sample: StepSample) -> float:
    """Seconds of that step by the model."""
    prefill, decodes = ([*map(int, x)] for x in (sample.prefill, sample.decodes))
    return cost.step_seconds(Loads(prefill, decodes, [0] * len(prefill)))


def cost_of_server(source: str, full: int) -> CostModel:
    """What `adaptive` has learned on a server.

    Args:
        source: URL of the server, which is asked, or the report.json of a trial.
        full: its `--max-num-batched-tokens`.

    Raises:
        UsageError: it has learned nothing, or does not answer.
    """
    if source and Path(source).is_file():
        document: Any = read_json(Path(source), "trial")
        found, where = document.get("learned_seconds") or {}, source
        what, give = "learned_seconds", "the report of a trial that sent"
    else:
        from ..trial.endpoint import Endpoint  # what it needs only a server has

        found, where = Endpoint(source).figures().costs, f"{source}/metrics"
        what, give = "vllm:dp_balance_step_cost_seconds", "a server that has served"
    try:
        parts = {name: float(found[name]) for name in StepCost._fields}
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"{where}: has no {what} of all parts; give {give} a load with the policy "
            "adaptive."
        ) from None
    return cost_model(StepCost(**parts), full)
