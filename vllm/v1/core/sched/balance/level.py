# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Chooses the prefill budget of a step: rent saved against time wasted."""

from bisect import bisect_left
from collections.abc import Iterable

from .costs import StepCost


def best_level(
    work: Iterable[tuple[int, float]],
    ranks: int,
    limit: int,
    max_tokens: int,
    cost: StepCost,
    floor: int = 0,
) -> int:
    """The budget B with the largest gain, or 0 if none is worth its waste.

    ``gain(B) = sum_r rent_r * min(1, B / p_r) - cost.waste(B, mean_r min(p_r, B))``

    Between two of the pending tokens p_r the gain is linear in B, so only B = p_r,
    the limit and the floor need to be looked at: one sort, O(ranks log ranks).

    Args:
        work: pending prompt tokens p_r > 0 and rent_r (seconds) of each rank that has
            some, in any order.
        ranks: how many ranks there are, those without work included.
        limit: the largest budget that a step can take beside its decodes, at least 1.
        max_tokens: tokens of the largest step; the unit of `cost`.
        cost: what prefills cost.
        floor: a budget that must be granted at least, from 0 (none) to the limit.

    Returns:
        A number of tokens, at most `limit`; at least `floor`.
    """
    ordered = sorted(work)
    # Ranks below the floor are served whole whatever level is chosen.
    first = bisect_left(ordered, (floor,))
    saved = sum(rent for _, rent in ordered[:first])  # rent of ranks served whole
    below = sum(tokens for tokens, _ in ordered[:first])  # their tokens
    rest = ordered[first:]
    above = len(rest)
    # With the costs per token and mean = (below + B * above) / ranks,
    # gain(B) = saved + B * rate - own * (B - mean) - fixed + fixed * mean;
    # all gains below are without the constant -fixed.
    own = cost.own / max_tokens
    slope = (own + cost.fixed / max_tokens) / ranks
    rate = sum(rent / tokens for tokens, rent in rest) - own
    best, best_gain = 0, cost.fixed
    if floor:
        best = floor
        best_gain = saved + floor * rate + slope * (below + floor * above)
    for tokens, rent in rest:
        level = tokens if tokens < limit else limit
        gain = saved + level * rate + slope * (below + level * above)
        if gain >= best_gain:
            best, best_gain = level, gain
        if tokens >= limit:
            break
        saved += rent
        rate -= rent / tokens
        below += tokens
        above -= 1
    return best
