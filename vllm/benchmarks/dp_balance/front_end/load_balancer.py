# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a load balancer is told, and what it is asked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..requests.request import SimRequest
from .coordinator import Counts

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
