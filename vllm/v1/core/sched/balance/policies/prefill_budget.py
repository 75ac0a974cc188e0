# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Chooses the prefill budget of a step: waiting saved against time wasted."""

import math
from collections.abc import Iterable

from .step_cost import StepCost


def best_prefill_budget(
    work: Iterable[tuple[float, float]],
    ranks: int,
    limit: float,
    max_tokens: int,
    cost: StepCost,
) -> float:
    """The budget B with the largest gain, or 0 if none is worth its waste.

    ``gain(B) = sum_r cost_r * min(1, B / p_r)
    - cost.waste(B, mean_r min(p_r, B), share of ranks without work)``

    Between two of the pending tokens p_r the gain is linear in B, so only B = p_r
    and the limit need to be looked at: one sort, O(ranks log ranks).

    Args:
        work: pending prompt tokens p_r > 0, or what they cost, and waiting
            cost_r (seconds) of each rank that has some, in any order.
        ranks: how many ranks there are, those without work included.
        limit: the largest budget that a step can take beside its decodes, at least 1.
        max_tokens: tokens of the largest step; the unit of `cost`.
        cost: what prefills cost.

    Returns:
        A number as those of `work`, at most `limit`.
    """
    ordered = sorted(work)
    # Waiting cost and tokens of the ranks that are served whole.
    saved = below = 0.0
    above = len(ordered)
    # With the costs per token and mean = (below + B * above) / ranks,
    # gain(B) = saved + B * (rate + own + junk) - own * (B - mean) - junk * B
    # - fixed * (1 - mean); all gains below are without the constant -fixed.
    own = cost.own / max_tokens
    slope = (own + cost.fixed / max_tokens) / ranks
    junk = cost.padding / max_tokens * (ranks - len(ordered)) / ranks
    rate = math.fsum(waited / tokens for tokens, waited in ordered) - own - junk
    best, best_gain = 0.0, cost.fixed
    for tokens, waited in ordered:
        budget = tokens if tokens < limit else limit
        gain = saved + budget * rate + slope * (below + budget * above)
        if gain >= best_gain:
            best, best_gain = budget, gain
        if tokens >= limit:
            break
        saved += waited
        rate -= waited / tokens
        below += tokens
        above -= 1
    return best
