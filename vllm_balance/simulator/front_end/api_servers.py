# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Routes requests to ranks: API servers, their load balancers, the coordinator."""

from collections.abc import Sequence

from ..requests.request import SimRequest
from .backends import LoadBalancer
from .coordinator import Coordinator


class Dispatcher:
    """Sends requests to ranks by what each API server knows at that time."""

    def __init__(self, ranks: int, load_balancers: Sequence[LoadBalancer]) -> None:
        """Starts without requests; one load balancer for each API server."""
        self.coordinator = Coordinator(ranks)
        self._load_balancers = load_balancers
        self.is_dealt = load_balancers[0].is_dealt

    def route(
        self, arrived: Sequence[tuple[float, SimRequest]]
    ) -> list[tuple[int, SimRequest]]:
        """Takes arrived requests, with times; returns those sent, with ranks."""
        if self.is_dealt:
            return self._load_balancers[0].deal([request for _, request in arrived])
        routed = []
        for time, request in arrived:
            for publication in self.coordinator.published(time):
                for load_balancer in self._load_balancers:
                    load_balancer.publish(publication.counts)
            rank = self._load_balancers[request.server].choose(request)
            routed.append((rank, request))
        return routed

    def first_token(self, request: SimRequest) -> None:
        """The first token of a request passes its API server."""
        self._load_balancers[request.server].first_token(request)

    def finished(self, request: SimRequest) -> None:
        """The last token of a request passes its API server."""
        self._load_balancers[request.server].finished(request)
