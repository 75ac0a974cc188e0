# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Which rank a front-end sends a request to: by the prompt tokens it still waits for.

Pure Python: no torch, no vllm import.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

REQUEST_TOKENS = 150
"""A request in flight counts like so many prompt tokens that wait for prefill."""


class Backlog(NamedTuple):
    """What a rank has to do."""

    prompt_tokens: int = 0
    """Of requests without a first token."""
    requests: int = 0
    """In flight: waiting and running."""


QUEUE_SAMPLE = 64
"""Waiting requests whose prompts a rank adds up; it takes the others to be like them,
because it does so in every step."""


def queued_tokens(sample: Sequence[int], waiting: int) -> int:
    """Prompt tokens of a queue.

    Args:
        sample: those of the first `QUEUE_SAMPLE` requests, or of all.
        waiting: how many requests there are.
    """
    if waiting <= len(sample):
        return sum(sample)
    return round(sum(sample) * waiting / len(sample))


class _Sent(NamedTuple):
    rank: int
    prompt_tokens: int
    """0 once the first token has come."""


class TokenDispatch:
    """Sends each request to the rank that has least to do.

    A rank with a free slot comes before one without; then the least prompt tokens
    without a first token, plus `REQUEST_TOKENS` for every request in flight. A
    front-end knows this of its own requests at once. Where there are several, it also
    takes what the ranks publish of all requests, and believes the greater of the two.
    """

    def __init__(
        self, ranks: int, slots: int, servers: int = 1, server: int = 0
    ) -> None:
        """Starts without requests.

        Args:
            ranks: data parallel size.
            slots: requests that a rank runs at once.
            servers: front-ends that send requests to these ranks.
            server: number of this one; of equal ranks, each prefers another.
        """
        self._slots = slots
        self._servers = servers
        self._first = ranks * server // servers
        self._requests: dict[Hashable, _Sent] = {}
        self.own = [Backlog()] * ranks
        """What this front-end has sent to each rank and is not done."""
        self._published = [Backlog()] * ranks

    def publish(self, backlogs: Sequence[tuple[int, int]]) -> None:
        """Takes what the ranks publish: fields of `Backlog`, of all front-ends.

        Their number may have changed since the last time: requests of ranks that are
        gone are forgotten.
        """
        self._published = [Backlog(*backlog) for backlog in backlogs]
        ranks = len(self._published)
        for request, sent in list(self._requests.items()):
            if sent.rank >= ranks:
                self.ended(request)
        new = ranks - len(self.own)
        self.own = self.own[:ranks] + [Backlog()] * new

    def choose(self) -> int:
        """The rank for the next request."""
        ranks = len(self.own)
        scan = [(self._first + i) % ranks for i in range(ranks)]
        return min(scan, key=self._load)

    def _load(self, rank: int) -> tuple[bool, int]:
        tokens, requests = self.own[rank]
        if self._servers > 1:
            published = self._published[rank]
            tokens = max(tokens, published.prompt_tokens)
            requests = max(requests, published.requests)
        return requests >= self._slots, tokens + REQUEST_TOKENS * requests

    def rank_of(self, request: Hashable) -> int | None:
        """Where a request that has not ended was sent."""
        sent = self._requests.get(request)
        return None if sent is None else sent.rank

    def sent(self, request: Hashable, rank: int, prompt_tokens: int) -> None:
        """A request, or more input of it, goes to a rank.

        The other front-ends are taken to send as much as this one. What goes to a rank
        that was not heard of yet is not counted.
        """
        self.ended(request)
        if rank >= len(self.own):
            return
        self._requests[request] = _Sent(rank, prompt_tokens)
        self._add(rank, prompt_tokens, 1)
        tokens, requests = self._published[rank]
        self._published[rank] = Backlog(
            tokens + self._servers * prompt_tokens, requests + self._servers
        )

    def first_token(self, request: Hashable) -> None:
        """The request's prompt is computed."""
        sent = self._requests.get(request)
        if sent is not None and sent.prompt_tokens:
            self._add(sent.rank, -sent.prompt_tokens, 0)
            self._requests[request] = sent._replace(prompt_tokens=0)

    def ended(self, request: Hashable) -> None:
        """The request has ended, however, or was never taken."""
        sent = self._requests.pop(request, None)
        if sent is not None:
            self._add(sent.rank, -sent.prompt_tokens, -1)

    def _add(self, rank: int, prompt_tokens: int, requests: int) -> None:
        own = self.own[rank]
        self.own[rank] = Backlog(
            own.prompt_tokens + prompt_tokens, own.requests + requests
        )
