# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""In which order a rank starts the prompts that wait: short ones first, within bounds.

Pure Python: no torch, no vllm import, no clock.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import TypeVar

OVERTAKEN = 1
"""For how many computed tokens a prompt can be passed, for each of its own."""
FIRST = 64
"""Waiting requests that are put in order; those behind them stay as they came."""

T = TypeVar("T")
Key = Callable[[T], tuple[int, int]]


class ShortFirst:
    """Short prompts pass long ones, but not for long.

    A prompt that has p tokens to compute and arrives when its rank has computed V has
    the place ``V + OVERTAKEN * p``; the least is first. One that comes later and has q
    tokens passes it only if less than ``OVERTAKEN * (p - q)`` tokens were computed
    meanwhile. So nothing passes a prompt that comes after as much was computed as it
    takes itself, and age counts in work: it stands still while all hold.

    Only those that are pending pass each other: they keep slot and blocks, and so age
    and hold. Slots are given in order of arrival, since who has one keeps it for an
    answer, of whose length the prompt does not tell. Preempted requests stay first.
    """

    def __init__(self) -> None:
        self._computed = 0
        self._places: dict[str, int] = {}

    def end_step(
        self, new: Mapping[str, int], computed: int, requests: Collection[str]
    ) -> None:
        """Takes one step.

        Args:
            new: prompt tokens to compute of the requests that came before or in it.
            computed: prompt tokens that the rank computed in it.
            requests: all that are not finished; the others are forgotten now and then.
        """
        places, now = self._places, self._computed
        places.update({name: now + OVERTAKEN * left for name, left in new.items()})
        self._computed += computed
        if len(places) > 2 * len(requests) + 100:
            self._places = {each: places[each] for each in places if each in requests}

    def place(self, name: str, preempted: bool, pending: bool) -> tuple[int, int]:
        """Where a waiting request stands; less is earlier.

        Args:
            name: of the request.
            preempted: whether it ran before.
            pending: whether it was pending after the last step.
        """
        if preempted:
            return 0, 0
        return (1, self._places.get(name, self._computed)) if pending else (2, 0)


def sort_first(queue: deque[T], key: Key[T]) -> None:
    """Sorts the first requests of a queue."""
    first = list(islice(queue, FIRST))
    in_order = sorted(first, key=key)
    if in_order != first:
        for _ in first:
            queue.popleft()
        queue.extendleft(reversed(in_order))
