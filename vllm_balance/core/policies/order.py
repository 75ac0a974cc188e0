# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The order in which a rank starts the prompts that wait: short ones first."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass
class _Prompt:
    tokens: int
    """Tokens to compute when it first was pending."""
    allowed: int
    """Tokens of others that may still pass it."""


class ShortFirst:
    """Short prompts pass long ones, each by no more than it has tokens itself.

    A prompt that becomes pending passes the one before it if that is longer and still
    allows as much; then the next one, until one does not. A prompt of p tokens allows p
    at first, and what passes it is taken off: so later prompts of at most p tokens
    together are computed before it. Only those that are pending pass each other; slots
    are given in order of arrival, for a prompt does not tell how long its answer keeps
    one.
    """

    def __init__(self) -> None:
        self._prompts: dict[str, _Prompt] = {}
        """Those that ever were pending and are not finished."""

    def sort(
        self,
        queue: deque[T],
        first: Sequence[str],
        pending: Mapping[str, int],
        unfinished: Collection[str],
    ) -> None:
        """Lets those that have become pending pass others in a rank's queue.

        `first` are names of its first requests, "" for one that stays where it is;
        `pending` says what pending ones have to compute. Others than the `unfinished`
        are forgotten now and then.
        """
        prompts = self._prompts
        if all(name in prompts or name not in pending for name in first):
            return
        order: list[tuple[T, _Prompt | None]] = []
        for name in first:
            request, place = queue.popleft(), len(order)
            prompt = prompts.get(name) if name in pending else None
            if prompt is None and name in pending:
                tokens = pending[name]
                prompt = prompts[name] = _Prompt(tokens, allowed=tokens)
                while place and _lets_pass(order[place - 1][1], tokens):
                    place -= 1
            order.insert(place, (request, prompt))
        queue.extendleft([request for request, _ in reversed(order)])
        if len(prompts) > 2 * (len(unfinished) + 1):
            self._prompts = {n: p for n, p in prompts.items() if n in unfinished}


def _lets_pass(prompt: _Prompt | None, tokens: int) -> bool:
    """Whether a prompt lets these tokens pass; they are then taken off."""
    if prompt is None or not prompt.allowed >= tokens < prompt.tokens:
        return False
    prompt.allowed -= tokens
    return True
