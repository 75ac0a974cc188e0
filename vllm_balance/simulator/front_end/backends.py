# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a load balancer knows of the ranks, is told, and is asked."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..rank.counts import Counts
from ..requests.request import SimRequest

CachedTokens = Callable[[int, SimRequest], int]
"""Tokens of a request that a rank, by number, has in its KV cache now."""

OutputTokens = Callable[[SimRequest], int]
"""Tokens of a request's answer so far."""


@dataclass(frozen=True)
class ApiServer:
    """Which of the API servers a load balancer is part of."""

    index: int = 0
    count: int = 1


FIRST = ApiServer()


@dataclass(frozen=True)
class Backends:
    """The ranks, as far as those who send requests to them may know them."""

    ranks: int
    rng: random.Random
    """For who draws ranks."""
    api_servers: int = 1
    slots: int = 1
    """Requests that a rank runs at a time."""
    kv_blocks: int | None = None
    """Of the KV cache of a rank; None if it never fills."""
    cached_tokens: CachedTokens = lambda rank, request: 0
    output_tokens: OutputTokens = lambda request: 0

    @property
    def servers(self) -> Sequence[ApiServer]:
        """The API servers that send to them."""
        return [ApiServer(index, self.api_servers) for index in range(self.api_servers)]


class LoadBalancer:
    """Chooses ranks; what it does not look at, it is told in vain."""

    is_dealt = False
    """Whether requests wait for it, and it chooses by `deal`."""

    def deal(self, arrived: Sequence[SimRequest]) -> list[tuple[int, SimRequest]]:
        """Once before each step, what is sent then, of what has arrived until now."""
        raise NotImplementedError

    def choose(self, request: SimRequest) -> int:
        """Sends a request to the best rank."""
        raise NotImplementedError

    def publish(self, counts: Counts) -> None:
        """The coordinator's counts arrived."""

    def first_token(self, request: SimRequest) -> None:
        """A request of this front-end got its first token."""

    def finished(self, request: SimRequest) -> None:
        """A request of this front-end ended."""


MakeBalancers = Callable[[Backends], Sequence[LoadBalancer]]
"""Makes the load balancer of each API server; a router in front is the same for all."""
