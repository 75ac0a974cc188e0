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
        """Takes what the ranks publish: fields of `Backlog`, of all front-ends."""
        self._published = [Backlog(*backlog) for backlog in backlogs]

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

    def sent(self, request: Hashable, rank: int, prompt_tokens: int) -> None:
        """A request goes to a rank. The others are taken to send as much as this."""
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
        """The request is finished or aborted, or was never taken."""
        sent = self._requests.pop(request, None)
        if sent is not None:
            self._add(sent.rank, -sent.prompt_tokens, -1)

    def _add(self, rank: int, prompt_tokens: int, requests: int) -> None:
        own = self.own[rank]
        self.own[rank] = Backlog(
            own.prompt_tokens + prompt_tokens, own.requests + requests
        )
