# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Types of numeric command line options."""

import argparse
import math
from collections.abc import Callable

MOST_REQUESTS = 2_000_000
"""Requests in a run: more do not fit into memory."""
MOST_TOKENS = 10_000_000
"""Tokens of a prompt or an answer, or in a step."""
MOST_RANKS = 4096


def whole(low: int, high: int) -> Callable[[str], int]:
    """The type of an option that takes whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            if low <= (number := int(text)) <= high:
                return number
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(
            f"{text}: give a whole number from {low} to {high}"
        )

    return parse


def real(
    low: float, high: float, *, above: bool = False, endless: bool = False
) -> Callable[[str], float]:
    """The type of an option that takes numbers from `low` to `high`.

    Args:
        low: the minimum; with `above`, all must be greater.
        high: the maximum.
        above: whether `low` itself is refused.
        endless: whether infinity is taken, too.
    """

    def parse(text: str) -> float:
        try:
            number = float(text)
            if endless and number == math.inf:
                return number
            if low <= number <= high and not (above and number == low):
                return number
        except ValueError:
            pass
        first = f"above {low:g}" if above else f"from {low:g}"
        raise argparse.ArgumentTypeError(
            f"{text}: give a number {first} to {high:g}{', or inf' * endless}"
        )

    return parse
