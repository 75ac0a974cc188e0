# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Chooses the prefill budget of a step: rent saved against time wasted."""

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
    best, best_gain = floor, 0.0
    if floor:
        best_gain = float("-inf")
    ordered = sorted(work)
    rate = sum(rent / tokens for tokens, rent in ordered)  # rent saved per token
    saved = 0.0  # rent of the ranks that the level serves whole
    below = 0  # their tokens
    above = len(ordered)  # the ranks that it does not
    untried = floor
    for tokens, rent in ordered:
        top = min(tokens, limit)
        for level in (untried, top) if 0 < untried < top else (top,):
            if level >= floor:
                mean = (below + level * above) / ranks
                waste = cost.waste(level / max_tokens, mean / max_tokens)
                gain = saved + level * rate - waste
                if gain >= best_gain:
                    best, best_gain = level, gain
        if top >= untried:
            untried = 0
        if tokens >= limit:
            break
        saved += rent
        rate -= rent / tokens
        below += tokens
        above -= 1
    return best
