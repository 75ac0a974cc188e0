# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Converts the costs that `adaptive` learns to the simulator's cost model."""

from vllm_balance.core.policies.cost import StepCost

from .model import LEAST_STEP, CostModel


def cost_model(cost: StepCost, full: float) -> CostModel:
    """The simulator's cost model, which is per token.

    Args:
        cost: the policy's, which is per full step.
        full: prompt tokens of a full step.
    """
    prefill = cost.own + cost.shared
    return CostModel(
        t0=max(LEAST_STEP, cost.decode),
        a=0.0,
        b=prefill / full,
        c=cost.fixed,
        attention=cost.attention / full**2,
        phi=cost.shared / prefill if prefill else 0.0,
        padded=float(cost.padding > cost.shared / 2),
    )
