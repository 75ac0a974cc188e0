# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The cost model as `adaptive` learns it, from steps, or on a server."""

import statistics
from collections.abc import Sequence

from vllm.v1.core.sched.balance.policies.cost import CostLearner, StepCost

from ..errors import UsageError
from .model import LEAST_STEP, CostModel, Loads
from .steps import StepSample

OUTLYING = 3.0
"""A step of decodes that lasts so many times the median tells nothing of them."""


def learn(samples: Sequence[StepSample]) -> CostModel:
    """What the learner of `adaptive` makes of the steps, and a line through decodes.

    The learner fades, so the last hundred steps with a prefill count. Attention is not
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
    learner = CostLearner()
    for sample in samples:
        shares = [tokens / full for tokens in sample.prefill]
        learner.observe(
            max(LEAST_STEP, sample.seconds - per_decode * max(sample.decodes)),
            max(shares),
            statistics.fmean(shares),
            shares.count(0) / len(shares),
        )
    assert learner.cost is not None, "a step without prefill"
    return cost_model(learner.cost, full, per_decode)


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


def cost_of_server(url: str, full: int) -> CostModel:
    """What `adaptive` has learned on a server, from its /metrics.

    Args:
        url: of the server.
        full: its `--max-num-batched-tokens`.

    Raises:
        UsageError: it has learned nothing, or does not answer.
    """
    from ..trial.endpoint import Endpoint  # what it needs only a server has

    found = Endpoint(url).figures().costs
    if not {*found} >= {*StepCost._fields}:
        raise UsageError(
            f"{url}/metrics: has no vllm:dp_balance_step_cost_seconds of all parts; "
            "give a server that has served a load with the policy adaptive."
        )
    return cost_model(StepCost(**{n: found[n] for n in StepCost._fields}), full)
