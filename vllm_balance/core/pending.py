# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Finds the prompts that a rank, or a simulated one, could compute in a step."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from .policies.cost import twice_attended

FRESH = 8
"""Prompts at the head of a queue that are looked up in each step. What those behind
them find in the KV cache is looked up once, and may be wrong until they come up."""


class NamedRequest(Protocol):
    """A request, as upstream has it."""

    request_id: str
    arrival_time: float
    num_output_tokens: int


T = TypeVar("T", bound=NamedRequest)


class Prompt(NamedTuple):
    tokens: int
    computed: int
    """Tokens that are computed already, or found in the KV cache."""
    blocks: int
    """Free blocks that it would take."""


class Pending(NamedTuple):
    """Prompts that could be started or continued."""

    tokens: dict[str, int]
    """What is left to compute of each: those in progress first, then in turn."""
    attended: int
    """Tokens that all these attend to."""
    arrivals: Sequence[float] = ()
    """Arrival times of those that have no first token yet."""


class Refusal(NamedTuple):
    """Upstream ended a step at a request that the gate let pass, for want of blocks."""

    request_id: str
    """The request; "" if there was none."""
    free: int
    """Blocks that were free then."""
    running: int
    """Requests that ran then."""

    def lasts(self, free: int, running: int) -> bool:
        return bool(running) and running >= self.running and free <= self.free


NOBODY = Refusal("", 0, 0)


class PendingWork(Generic[T]):
    """Counts down the free blocks, as one waiting prompt after the other takes its own.

    The first that does not fit ends the list. The count is nominal: of a prompt all
    blocks that no request uses now, whatever windows of attention, evictions and the
    growth of others make of it. Where it says too much, upstream refuses the prompt
    once, and it is not pending until something becomes free.
    """

    def __init__(self, look_up: Callable[[T, Prompt | None], Prompt]) -> None:
        """Takes what finds a prompt in the KV cache; it is given its last answer."""
        self._look_up = look_up
        self._found: dict[str, Prompt] = {}

    def read(
        self,
        begun: Iterable[T],
        waiting: Iterable[T],
        free: int,
        refusal: Refusal = NOBODY,
        known: Mapping[str, int] | None = None,
    ) -> Pending:
        """All pending requests.

        Args:
            begun: prompts in progress; they are always pending.
            waiting: those that wait for nothing but a place, one for each free slot.
            free: blocks that prompts may take.
            refusal: the request that upstream had no blocks for, while that lasts.
            known: tokens that a connector has, by request.
        """
        pending: dict[str, int] = {}
        arrivals: list[float] = []
        twice = 0

        def add(request: T, tokens: int, computed: int) -> None:
            nonlocal twice
            pending[request.request_id] = left = tokens - computed
            twice += twice_attended(computed, left)
            if not request.num_output_tokens:
                arrivals.append(request.arrival_time)

        for request in begun:
            tokens, computed, blocks = self._look_up(request, None)
            free -= blocks
            add(request, tokens, computed)
        before, found = self._found, {}
        for number, request in enumerate(waiting):
            name = request.request_id
            if name == refusal.request_id:
                break
            prompt = before.get(name)
            if prompt is None or number < FRESH:
                prompt = self._look_up(request, prompt)
            found[name] = prompt
            tokens, computed, blocks = prompt
            free -= blocks
            if free < 0:
                break
            if known:
                computed = max(computed, known.get(name, 0))
            add(request, tokens, computed)
        self._found = found
        return Pending(pending, twice // 2, arrivals)


class PendingAges:
    """Remembers when each pending request was first seen pending.

    Not when it arrived: by that time everything would be released at once wherever
    requests queue for a slot.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def update(self, names: Collection[str], now: float) -> tuple[float, list[float]]:
        """When the oldest of these became pending, and each that is so no more.

        `now` without any, in seconds of any clock that does not go back.
        """
        since = self._since
        self._since = {name: since.get(name, now) for name in names}
        left = [then for name, then in since.items() if name not in self._since]
        return min(self._since.values(), default=now), left
