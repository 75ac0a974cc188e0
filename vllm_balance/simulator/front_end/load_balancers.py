# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Load balancers of API servers, each of which has its own: where a request is sent.

vLLM's see the counts that the coordinator publishes, and their own requests at once.
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
    """vLLM 0.23: the least of four times waiting plus running, lowest rank first.

    With several API servers the scan starts at another rank in each, and each counts
    its own request as often as there are servers. What has ended it sees only when the
    coordinator publishes it.
    """

    def __init__(self, ranks: int, server: ApiServer = FIRST) -> None:
        self._server = server
        start = ranks * server.index // server.count
        self._scan = [(start + i) % ranks for i in range(ranks)]
        self._waiting = [0] * ranks
        self._running = [0] * ranks

    def publish(self, counts: Counts) -> None:
        """Forgets what was counted locally since the last time."""
        self._waiting = [count.waiting for count in counts]
        self._running = [count.running for count in counts]

    def choose(self, request: SimRequest) -> int:
        """Counts the request as waiting on its rank until the next `publish`."""
        waiting, running = self._waiting, self._running
        rank = min(self._scan, key=lambda i: 4 * waiting[i] + running[i])
        waiting[rank] += self._server.count
        return rank


class _HostBoard(Board):
    """One for all API servers of a host, each of which prefers another rank."""

    def __init__(self, server: ApiServer, rows: Board) -> None:
        self.server, self.servers = server.index, server.count
        self.tokens, self.requests = rows.tokens, rows.requests


class Host:
    """The API servers of a host with balance scheduling's own dispatch.

    What one of them writes on the board, all know at once; so they are modelled to
    share it, and what they believe of KV caches.
    """

    def __init__(
        self, backends: Backends, weights: Weights, knows_prefixes: bool = False
    ) -> None:
        """Starts without requests.

        Args:
            backends: the ranks.
            weights: what a rank has to do.
            knows_prefixes: whether it is kept in mind what ranks have cached.
        """
        self.chunks = Chunks()
        self.output_tokens = backends.output_tokens if weights.to_attend else None
        """None if they do not count."""
        cache: tuple[int, ...] = ()
        if knows_prefixes:
            blocks = backends.kv_blocks or sys.maxsize
            chunk = chunk_tokens(BLOCK_SIZE)
            cache = blocks * BLOCK_SIZE // chunk, chunk
        board = Board()
        self.servers: list[ModelledDispatch] = []
        for server in backends.servers:
            own = _HostBoard(server, board)
            dispatch = Dispatch(backends.ranks, backends.slots, weights, own, *cache)
            if self.servers:
                dispatch.memories = self.servers[0].dispatch.memories
            self.servers.append(ModelledDispatch(self, dispatch))

    def count_answers(self) -> None:
        """Counts what has come of all answers, if that counts."""
        if self.output_tokens is not None:
            for each in self.servers:
                each.count_answers(self.output_tokens)


class ModelledDispatch(LoadBalancer):
    """Balance scheduling's own, in one API server."""

    def __init__(self, host: Host, dispatch: Dispatch) -> None:
        self._host, self.dispatch = host, dispatch
        self._passed: dict[SimRequest, int] = {}
        """Tokens of the answers of requests in flight, as far as they are counted."""

    def choose(self, request: SimRequest) -> int:
        """Counts the request at once."""
        self._host.count_answers()
        keys = self._keys(request) if self.dispatch.chunks else ()
        rank = self.dispatch.choose(keys)
        self.dispatch.sent(request.index, rank, request.prompt_len, keys)
        self._passed[request] = 0
        return rank

    def count_answers(self, output_tokens: OutputTokens) -> None:
        """Counts what has come of the answers to its requests."""
        for each, before in self._passed.items():
            if (passed := output_tokens(each)) != before:
                self.dispatch.answered(each.index, passed - before)
                self._passed[each] = passed

    def _keys(self, request: SimRequest) -> Keys:
        """Those of the chunks of the front-end, of which those of a trace are parts."""
        numbers, size = self._host.chunks.of(request), request.chunk_size
        chunk = self.dispatch.chunk_tokens
        whole = min(request.prompt_len, len(numbers) * size) // chunk
        ends = range(chunk, whole * chunk + 1, chunk)
        keys = [(numbers[(end - 1) // size], end) for end in ends]
        for memory in self.dispatch.memories if request.has_cached else ():
            memory.used(keys)
        return keys

    def first_token(self, request: SimRequest) -> None:
        """Its prompt need not be computed any more, and what is cached is known."""
        self.dispatch.answered(request.index, 0)

    def finished(self, request: SimRequest) -> None:
        """It no longer counts."""
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
"""Those of this distribution: of vLLM, by its version, and balance scheduling's own."""


def load_balancer_of(name: str, balance_on: bool, decodes_only: bool = False) -> str:
    """The name of the load balancer, where it may be `AS_SERVED`.

    As served it is by context on a decode instance with balance on; on others it is
    aware of prefixes, which is by tokens where no prompts share them. With balance off
    it is that of vLLM.
    """
    if name != AS_SERVED:
        return name
    if not balance_on:
        return BY_COUNTS
    return BY_CONTEXT if decodes_only else BY_PREFIXES
