# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Clients: when each request is sent, and when it reaches the ranks."""

import heapq
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import UsageError
from .request import SimRequest
from .traces import LONGEST


@dataclass(frozen=True)
class ClientTraffic:
    """The options of `vllm bench serve` on sending, with their names."""

    max_concurrency: int | None = None
    """Requests in flight at most, or sessions; None for no limit."""
    request_rate: float = float("inf")
    """Requests, or sessions, per second on average; infinite to send at once."""
    burstiness: float = 1.0
    """Shape of the gamma distributed intervals; 1 is a Poisson process."""
    self_timed: bool = False
    """Whether requests are sent at their own times, and not at a rate."""
    rate_multiplier: float = 1.0
    """By which factor a trace is replayed faster, and think times are shorter."""

    def due_times(
        self, requests: Sequence[SimRequest], rng: random.Random
    ) -> list[float]:
        """The earliest time in seconds at which each request may be sent.

        Raises:
            UsageError: a request has no time, or the last one is too late.
        """
        if self.self_timed:
            times = [request.due / self.rate_multiplier for request in requests]
            if any(map(math.isnan, times)):
                raise UsageError(
                    "--dataset-name timed_trace: the dataset has no times; give "
                    "--dataset-name custom."
                )
        elif self.request_rate == float("inf"):
            return [0.0] * len(requests)
        else:
            scale = 1 / (self.request_rate * self.burstiness)
            intervals = (rng.gammavariate(self.burstiness, scale) for _ in requests)
            times = list(itertools.accumulate(intervals))
        if (last := max(times, default=0.0)) > LONGEST:
            raise UsageError(
                f"--request-rate or --timed-trace-rate-multiplier: requests are sent "
                f"for {last:.3g} s; at most {LONGEST:.0g} can be simulated."
            )
        return times


@dataclass(frozen=True)
class Frontend:
    """The way from the client to the ranks."""

    serial_seconds: float = 0.001
    """Seconds of an API server per request, which it takes one by one."""
    jitter_seconds: float = 0.004
    """Further delay of a request in seconds, uniform from 0 to this."""
    api_servers: int = 1
    """The number of API servers; each request goes to one at random."""


class Clients:
    """Sends the requests in order, and tells which have arrived.

    Of a session only the first one is sent in order, and each other one a think time
    after the last token of the request before.
    """

    def __init__(
        self,
        requests: Sequence[SimRequest],
        traffic: ClientTraffic,
        frontend: Frontend,
        rng: random.Random,
    ) -> None:
        self._requests = requests
        self._frontend = frontend
        self._rng = rng
        self._rate_multiplier = traffic.rate_multiplier
        first = [request for request in requests if request.think is None]
        self._unsent = iter(zip(first, traffic.due_times(first, rng), strict=True))
        self._thinking: list[tuple[float, int]] = []
        """Times at which further requests of sessions are sent, with their numbers."""
        self._in_transit: list[tuple[float, int]] = []
        self._server_free = [0.0] * frontend.api_servers
        self.last_sent = 0.0
        """When the last request so far was sent, in seconds."""
        at_once = traffic.max_concurrency or len(first)
        if len(first) < len(requests):
            at_once = min(at_once, len(first))
        is_paced = traffic.self_timed or traffic.request_rate != float("inf")
        self.first_turn = 0 if is_paced and at_once >= len(first) else at_once
        """Requests that a closed loop sends at once; 0 for an open loop."""
        for _ in range(at_once):
            self._begin(0.0)

    def _begin(self, now: float) -> None:
        request, due = next(self._unsent, (None, 0.0))
        if request is not None:
            self._send(request, max(now, due))

    def _send(self, request: SimRequest, now: float) -> None:
        request.sent = now
        self.last_sent = max(self.last_sent, now)
        if (servers := self._frontend.api_servers) > 1:
            request.server = self._rng.randrange(servers)
        free = self._server_free
        free[request.server] = (
            max(free[request.server], request.sent) + self._frontend.serial_seconds
        )
        delay = self._frontend.jitter_seconds * self._rng.random()
        arrival = free[request.server] + delay
        heapq.heappush(self._in_transit, (arrival, request.index))

    def finished(self, request: SimRequest, now: float) -> None:
        """Ends a request, and sends the one that has waited for it, if any."""
        following = request.index + 1
        if following < len(self._requests):
            think = self._requests[following].think
            if think is not None:
                pause = think / self._rate_multiplier
                heapq.heappush(self._thinking, (now + pause, following))
                return
        self._begin(now)

    @property
    def next_arrival(self) -> float:
        """When the next request reaches the ranks, in seconds; infinite if none."""
        thinking, transit = self._thinking, self._in_transit
        while thinking and (not transit or thinking[0][0] <= transit[0][0]):
            time, index = heapq.heappop(thinking)
            self._send(self._requests[index], time)
        return self._in_transit[0][0] if self._in_transit else float("inf")

    def arrived(self, now: float) -> list[tuple[float, SimRequest]]:
        """Returns the requests that have arrived by `now`, each with its time."""
        batch = []
        while self.next_arrival <= now:
            time, index = heapq.heappop(self._in_transit)
            batch.append((time, self._requests[index]))
        return batch
