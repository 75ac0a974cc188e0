# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""In which order a rank starts the prompts that wait: short ones first, within bounds.

Pure Python: no torch, no vllm import, no clock.
"""

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
    at first, and what passes it is taken off. So prompts of at most p tokens together
    are computed before it that came later, however many come and however long all hold.

    Only those that are pending pass each other: they keep slot and blocks, and so age
    and hold. Slots are given in order of arrival, since who has one keeps it for an
    answer, of whose length the prompt does not tell.
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
        """Lets those that have become pending pass others.

        Args:
            queue: of a rank.
            first: names of its first requests; "" for one that stays where it is.
            pending: tokens to compute of those that are pending, by name.
            unfinished: names of all requests; others are forgotten now and then.
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
