# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Load balancers, one in each API server, which choose the rank of each request.

vLLM's know the counts that the coordinator publishes, and their own requests at once.
"""

import sys
from collections.abc import Mapping

from vllm_balance.core.dispatch import (
    TO_ATTEND,
    TO_COMPUTE,
    Board,
    Dispatch,
    Keys,
    Weights,
    chunk_tokens,
)

from ..rank.counts import Counts
from ..rank.kv_cache import Chunks
from ..rank.limits import BLOCK_SIZE
from ..requests.request import SimRequest
from .backends import (
    FIRST,
    ApiServer,
    Backends,
    LoadBalancer,
    MakeBalancers,
    OutputTokens,
)


class Balancer023(LoadBalancer):
    """vLLM 0.23: the rank with the least 4 * waiting + running, the lowest one first.

    With several API servers each begins the scan at another rank, and counts its own
    request as many times as there are servers. Ended requests are subtracted only when
    the coordinator publishes new counts.
    """

    def __init__(self, ranks: int, server: ApiServer = FIRST) -> None:
        self._server = server
        start = ranks * server.index // server.count
        self._scan = [(start + i) % ranks for i in range(ranks)]
        self._waiting = [0] * ranks
        self._running = [0] * ranks

    def publish(self, counts: Counts) -> None:
        """Replaces the counts, with all that was added locally."""
        self._waiting = [count.waiting for count in counts]
        self._running = [count.running for count in counts]

    def choose(self, request: SimRequest) -> int:
        """Counts the request as waiting on its rank until the next `publish`."""
        waiting, running = self._waiting, self._running
        rank = min(self._scan, key=lambda i: 4 * waiting[i] + running[i])
        waiting[rank] += self._server.count
        return rank


class _HostBoard(Board):
    """A board that an API server shares with the others of its host."""

    def __init__(self, server: ApiServer, rows: Board) -> None:
        self.server, self.servers = server.index, server.count
        self.tokens, self.requests = rows.tokens, rows.requests


class Host:
    """The API servers of a host, with balance scheduling's dispatch.

    All see at once what one of them writes on the board, so the model shares the board,
    and the estimates of KV caches.
    """

    def __init__(
        self, backends: Backends, weights: Weights, knows_prefixes: bool = False
    ) -> None:
        """Starts without requests.

        Args:
            backends: the ranks.
            weights: of the kinds of a rank's work.
            knows_prefixes: whether the ranks' cached prefixes are estimated.
        """
        self.chunks = Chunks()
        self.output_tokens = backends.output_tokens if weights.to_attend else None
        """None if the weights ignore answers."""
        cache: tuple[int, ...] = ()
        if knows_prefixes:
            blocks = backends.kv_blocks or sys.maxsize
            chunk = chunk_tokens(BLOCK_SIZE)
            cache = blocks * BLOCK_SIZE // chunk, chunk
        board = Board()
        self.servers: list[ModelledDispatch] = []
        for server in backends.servers:
            host_board = _HostBoard(server, board)
            dispatch = Dispatch(
                backends.ranks, backends.slots, weights, host_board, *cache
            )
            if self.servers:
                dispatch.memories = self.servers[0].dispatch.memories
            self.servers.append(ModelledDispatch(self, dispatch))

    def count_answers(self) -> None:
        """Counts the tokens of all answers so far, unless the weights ignore them."""
        if self.output_tokens is not None:
            for server in self.servers:
                server.count_answers(self.output_tokens)


class ModelledDispatch(LoadBalancer):
    """Balance scheduling's dispatch in one API server."""

    def __init__(self, host: Host, dispatch: Dispatch) -> None:
        self._host, self.dispatch = host, dispatch
        self._passed: dict[SimRequest, int] = {}
        """By request in flight the tokens of its answer that were counted."""

    def choose(self, request: SimRequest) -> int:
        """Chooses a rank, and counts the request there at once."""
        self._host.count_answers()
        keys = self._keys(request) if self.dispatch.chunks else ()
        rank = self.dispatch.choose(keys)
        self.dispatch.sent(request.index, rank, request.prompt_len, keys)
        self._passed[request] = 0
        return rank

    def count_answers(self, output_tokens: OutputTokens) -> None:
        """Counts the tokens of its requests' answers so far."""
        for request, before in self._passed.items():
            if (passed := output_tokens(request)) != before:
                self.dispatch.answered(request.index, passed - before)
                self._passed[request] = passed

    def _keys(self, request: SimRequest) -> Keys:
        """The keys of the front-end's chunks; chunks of a trace are parts of these."""
        numbers, size = self._host.chunks.of(request), request.chunk_size
        chunk = self.dispatch.chunk_tokens
        count = min(request.prompt_len, len(numbers) * size) // chunk
        ends = range(chunk, count * chunk + 1, chunk)
        keys = [(numbers[(end - 1) // size], end) for end in ends]
        for memory in self.dispatch.memories if request.has_cached else ():
            memory.used(keys)
        return keys

    def first_token(self, request: SimRequest) -> None:
        """Takes the prompt off the rank's work; its cached prefix is known now."""
        self.dispatch.answered(request.index, 0)

    def finished(self, request: SimRequest) -> None:
        del self._passed[request]
        self.dispatch.ended(request.index)


AS_SERVED, BY_COUNTS = "as-served", "0.23"
BY_TOKENS, BY_PREFIXES, BY_CONTEXT = "tokens", "prefix-aware", "context"

LOAD_BALANCERS: Mapping[str, MakeBalancers] = {
    BY_COUNTS: lambda backends: [
        Balancer023(backends.ranks, server) for server in backends.servers
    ],
    BY_TOKENS: lambda backends: Host(backends, TO_COMPUTE).servers,
    BY_PREFIXES: lambda backends: Host(backends, TO_COMPUTE, True).servers,
    BY_CONTEXT: lambda backends: Host(backends, TO_ATTEND).servers,
}
"""By name vLLM's, named by its version, and those of balance scheduling."""


def load_balancer_of(name: str, balance_on: bool, decodes_only: bool = False) -> str:
    """The load balancer that a name stands for, which may be `AS_SERVED`.

    As served, a decode instance with balance on goes by context, and others by
    prefixes, or by tokens where prompts share none. With balance off it is vLLM's.
    """
    if name != AS_SERVED:
        return name
    if not balance_on:
        return BY_COUNTS
    return BY_CONTEXT if decodes_only else BY_PREFIXES
