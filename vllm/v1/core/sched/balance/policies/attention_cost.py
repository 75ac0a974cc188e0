# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What chunks of prompts cost, in tokens as they cost at the beginning of a prompt."""

import math

LEAST_CHUNK = 1024
"""Tokens below which attention cuts no chunk. With MLA each chunk projects what is
before it, which takes as long as 410 tokens need to attend to it: by the shapes of
DeepSeek-V3, 512 * 256 operations against 320. It is also the shortest context at which
a token is taken to cost twice as much."""


def twice_attended(position: int, tokens: int) -> int:
    """Twice the tokens that a chunk attends to: a whole number."""
    return tokens * (2 * position + tokens)


def cost_of(position: int, tokens: int, per_attended: float) -> float:
    """What a chunk costs, with `per_attended` for each token that one attends to."""
    return tokens + per_attended * tokens * (position + tokens / 2)


def whole_step(tokens: int, per_attended: float) -> float:
    """What a step of these tokens may cost: as much as behind two other steps."""
    return cost_of(2 * tokens, tokens, per_attended)


def tokens_within(
    budget: float, position: int, tokens: int, per_attended: float, least: int = 1
) -> int:
    """How many tokens of a chunk a budget allows; at least one if it is 1 or more.

    And `least` of them, whatever they attend to, as far as it allows them at the
    beginning of a prompt.
    """
    if budget < 1:
        return 0
    if cost_of(position, tokens, per_attended) <= budget:
        return tokens
    price = 1 + per_attended * position
    root = math.sqrt(price * price + 2 * per_attended * budget)
    cut = int(2 * budget / (price + root))
    return min(tokens, max(1, cut, min(least, int(budget))))
