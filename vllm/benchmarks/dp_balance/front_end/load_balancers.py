# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Load balancers of API servers, each of which has its own: where a request is sent.

vLLM's see the counts that the coordinator publishes, and their own requests at once.
"""

import random
import sys
from collections.abc import Callable
from itertools import accumulate, cycle

from vllm.v1.core.sched.balance.core.dispatch import (
    TO_ATTEND,
    TO_COMPUTE,
    Board,
    Dispatch,
    Keys,
    Weights,
    chunk_tokens,
)

from ..errors import UsageError
from ..rank.kv_cache import Chunks
from ..rank.limits import BLOCK_SIZE
from ..requests.request import SimRequest
from .coordinator import Counts, RankCounts
from .load_balancer import (
    FIRST,
    ApiServer,
    CachedTokens,
    LoadBalancer,
    OutputTokens,
)
from .routers import BlindBalancer, DealByPrefix, SessionAffinity


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


class Balancer030(LoadBalancer):
    """The load balancer of vLLM 0.30 to 0.33.

    The least of the greater of own requests in flight times the API servers and
    published counts, more for a queue on a rank whose KV cache is more than half full;
    scanned from a rank that moves on.
    """

    def __init__(self, ranks: int, server: ApiServer = FIRST) -> None:
        self._server = server
        self._counts = [RankCounts(0, 0)] * ranks
        self._in_flight = [0] * ranks
        self._start = ranks * server.index // server.count

    def publish(self, counts: Counts) -> None:
        """Forgets what was counted locally since the last time."""
        self._counts = list(counts)

    def _score(self, rank: int) -> float:
        waiting, running, usage = self._counts[rank]
        load = max(self._server.count * self._in_flight[rank], waiting + running)
        return load + waiting * 6.0 * max(0.0, usage - 0.5)

    def choose(self, request: SimRequest) -> int:
        """Counts the request until the next `publish`, and as in flight."""
        ranks = len(self._counts)
        scan = [(self._start + i) % ranks for i in range(ranks)]
        rank = min(scan, key=self._score)
        count = self._counts[rank]
        self._counts[rank] = count._replace(waiting=count.waiting + self._server.count)
        self._in_flight[rank] += 1
        self._start = (self._start + 1) % ranks
        return rank

    def finished(self, request: SimRequest) -> None:
        """Seen at once: the responses pass the same front-end."""
        self._in_flight[request.rank] -= 1


class _HostBoard(Board):
    """One for all API servers of a host, each of which prefers another rank."""

    def __init__(self, server: ApiServer, rows: Board) -> None:
        self.server, self.servers = server.index, server.count
        self.tokens, self.requests = rows.tokens, rows.requests


class BalanceDispatch(LoadBalancer):
    """Balance scheduling's own.

    What one API server writes on the board of the host, all know at once; so they are
    modelled to share it, and what they believe of KV caches.
    """

    def __init__(
        self,
        host: list["BalanceDispatch"],
        server: ApiServer,
        dispatch: Callable[[Board], Dispatch],
        output_tokens: OutputTokens | None = None,
    ) -> None:
        """Starts without requests.

        Args:
            host: its API servers so far; this one is added.
            server: which one this is.
            dispatch: makes it for a board.
            output_tokens: of a request so far; None if they do not count.
        """
        host.append(self)
        self._host = host
        self._board: Board = Board() if self is host[0] else host[0]._board
        self._dispatch = dispatch(_HostBoard(server, self._board))
        self._dispatch.memories = host[0]._dispatch.memories
        self._chunks: Chunks = Chunks() if self is host[0] else host[0]._chunks
        self._output_tokens = output_tokens
        self._passed: dict[SimRequest, int] = {}
        """Tokens of the answers of requests in flight, as far as they are counted."""

    def choose(self, request: SimRequest) -> int:
        """Counts the request at once."""
        for each in self._host if self._output_tokens else ():
            each._count_answers()
        keys = self._keys(request) if self._dispatch.chunks else ()
        rank = self._dispatch.choose(keys)
        self._dispatch.sent(request.index, rank, request.prompt_len, keys)
        self._passed[request] = 0
        return rank

    def _count_answers(self) -> None:
        assert self._output_tokens is not None
        for each, before in self._passed.items():
            if (passed := self._output_tokens(each)) != before:
                self._dispatch.answered(each.index, passed - before)
                self._passed[each] = passed

    def _keys(self, request: SimRequest) -> Keys:
        """Those of the chunks of the front-end, of which those of a trace are parts."""
        numbers, size = self._chunks.of(request), request.chunk_size
        chunk = self._dispatch.chunk_tokens
        whole = min(request.prompt_len, len(numbers) * size) // chunk
        ends = range(chunk, whole * chunk + 1, chunk)
        keys = [(numbers[(end - 1) // size], end) for end in ends]
        for memory in self._dispatch.memories if request.has_cached else ():
            memory.used(keys)
        return keys

    def first_token(self, request: SimRequest) -> None:
        """Its prompt need not be computed any more, and what is cached is known."""
        self._dispatch.answered(request.index, 0)

    def finished(self, request: SimRequest) -> None:
        """It no longer counts."""
        del self._passed[request]
        self._dispatch.ended(request.index)


BY_TOKENS, BY_PREFIXES, BY_CONTEXT = OWN = ("tokens", "prefix-aware", "context")
"""Balance scheduling's own."""

LOAD_BALANCERS = ("0.23", "0.30", *OWN, "round-robin", "skewed")
"""Those of servers, and routers that do not look at the ranks; "skewed" draws them, the
i-th as often as 1 / √i."""

BEYOND = ("session-affinity", "trtllm-kv-aware")
"""A router in front, and that of another engine: one for all API servers."""

AS_SERVED = "as-served"


def load_balancer_of(name: str, balance_on: bool, decodes_only: bool = False) -> str:
    """The load balancer of that name, one of `LOAD_BALANCERS` or `AS_SERVED`.

    As served it is by context on a decode instance with balance on; on others it is
    aware of prefixes, which is by tokens where no prompts share them. With balance off
    it is that of vLLM 0.23.
    """
    if name != AS_SERVED:
        return name
    if not balance_on:
        return "0.23"
    return BY_CONTEXT if decodes_only else BY_PREFIXES


def make_load_balancers(
    name: str,
    ranks: int,
    rng: random.Random,
    api_servers: int = 1,
    slots: int = 1,
    kv_blocks: int | None = None,
    cached: CachedTokens | None = None,
    output_tokens: OutputTokens = lambda request: 0,
) -> list[LoadBalancer]:
    """The load balancer of that name, one for each API server; a router is one for all.

    Ranks have so many slots, and blocks in a KV cache, None if it never fills.

    Raises:
        UsageError: there is none of that name.
    """
    cached = cached or (lambda rank, request: 0)
    weights = list(accumulate((i + 1) ** -0.5 for i in range(ranks)))
    for_all: dict[str, Callable[[], LoadBalancer]] = {
        "round-robin": lambda: BlindBalancer(cycle(range(ranks)).__next__),
        "skewed": lambda: BlindBalancer(
            lambda: rng.choices(range(ranks), cum_weights=weights)[0]
        ),
        "session-affinity": lambda: SessionAffinity(ranks),
        "trtllm-kv-aware": lambda: DealByPrefix(ranks, slots, cached),
    }
    if name in for_all:
        return [for_all[name]()] * api_servers
    blocks = sys.maxsize if kv_blocks is None else kv_blocks
    chunk = chunk_tokens(BLOCK_SIZE)
    prefixes = blocks * BLOCK_SIZE // chunk, chunk
    host: list[BalanceDispatch] = []

    def own(weights: Weights, *cache: int) -> Callable[[ApiServer], LoadBalancer]:
        counted = output_tokens if weights.to_attend else None

        def dispatch(board: Board) -> Dispatch:
            return Dispatch(ranks, slots, weights, board, *cache)

        return lambda server: BalanceDispatch(host, server, dispatch, counted)

    of_server: dict[str, Callable[[ApiServer], LoadBalancer]] = {
        "0.23": lambda server: Balancer023(ranks, server),
        "0.30": lambda server: Balancer030(ranks, server),
        BY_TOKENS: own(TO_COMPUTE),
        BY_CONTEXT: own(TO_ATTEND),
        BY_PREFIXES: own(TO_COMPUTE, *prefixes),
    }
    if name not in of_server:
        names = ", ".join((*LOAD_BALANCERS, *BEYOND))
        raise UsageError(f"--load-balancer {name}: unknown; choose from {names}.")
    return [of_server[name](ApiServer(i, api_servers)) for i in range(api_servers)]
