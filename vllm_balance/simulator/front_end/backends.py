# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The interface of load balancers, and what they know of the ranks."""

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
    """What a load balancer may know of the ranks."""

    ranks: int
    rng: random.Random
    """The generator for load balancers that draw ranks."""
    api_servers: int = 1
    slots: int = 1
    """Requests that a rank runs at a time."""
    kv_blocks: int | None = None
    """Blocks of a rank's KV cache; None if it never fills."""
    cached_tokens: CachedTokens = lambda rank, request: 0
    output_tokens: OutputTokens = lambda request: 0

    @property
    def servers(self) -> Sequence[ApiServer]:
        """The API servers."""
        return [ApiServer(index, self.api_servers) for index in range(self.api_servers)]


class LoadBalancer:
    """Chooses ranks; it may ignore the notifications below."""

    is_dealt = False
    """Whether requests wait in its queue, from which `deal` takes them."""

    def deal(self, arrived: Sequence[SimRequest]) -> list[tuple[int, SimRequest]]:
        """Queues arrived requests; returns those that are sent before the next step."""
        raise NotImplementedError

    def choose(self, request: SimRequest) -> int:
        """The rank to which a request is sent."""
        raise NotImplementedError

    def publish(self, counts: Counts) -> None:
        """Notes new counts of the coordinator."""

    def first_token(self, request: SimRequest) -> None:
        """Notes the first token of one of its requests."""

    def finished(self, request: SimRequest) -> None:
        """Notes the end of one of its requests."""


MakeBalancers = Callable[[Backends], Sequence[LoadBalancer]]
"""Makes each API server's load balancer; a router in front is shared by all."""
