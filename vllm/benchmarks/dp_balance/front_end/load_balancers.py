# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Load balancers of API servers, each of which has its own: where a request is sent.

They see the counts that the coordinator publishes, and their own requests at once.
"""

import random
import sys
from collections.abc import Callable
from itertools import accumulate, cycle

from vllm.v1.core.sched.balance.context_dispatch import ContextDispatch
from vllm.v1.core.sched.balance.dispatch import TokenDispatch
from vllm.v1.core.sched.balance.prefix_memory import Keys, chunk_tokens

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
    Told,
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


class TokenBalancer(LoadBalancer):
    """Balance scheduling's own: by prompt tokens without a first token."""

    told: Told = "backlogs"
    rule: type[TokenDispatch] = TokenDispatch

    def __init__(self, ranks: int, server: ApiServer, slots: int, *cache: int) -> None:
        self._dispatch = self.rule(ranks, slots, server.count, server.index, *cache)
        self._peers: list[TokenBalancer] = []

    def publish(self, counts: Counts) -> None:
        """Takes tokens and requests of all API servers."""
        self._dispatch.publish([(tokens, requests) for tokens, requests, _ in counts])

    def choose(self, request: SimRequest) -> int:
        """Counts the request at once."""
        keys = self._keys(request)
        rank = self._dispatch.choose(keys)
        self._dispatch.sent(request.index, rank, request.prompt_len, keys)
        return rank

    def _keys(self, request: SimRequest) -> Keys:
        """Of the prompt's chunks."""
        return ()

    def first_token(self, request: SimRequest) -> None:
        """Its prompt no longer counts, and what was cached of it is known."""
        computed = self._dispatch.first_token(request.index, request.cached)
        if computed is not None:
            for peer in self._peers:
                peer._dispatch.heard(*computed)

    def finished(self, request: SimRequest) -> None:
        """It no longer counts."""
        self._dispatch.ended(request.index)


class PrefixAwareBalancer(TokenBalancer):
    """The same with prefix caching: also by the prompt tokens that a rank lacks."""

    def __init__(
        self, ranks: int, server: ApiServer, slots: int, kv_blocks: int | None
    ) -> None:
        self._chunk = chunk_tokens(BLOCK_SIZE)
        blocks = sys.maxsize if kv_blocks is None else kv_blocks
        cache = blocks * BLOCK_SIZE // self._chunk, self._chunk
        super().__init__(ranks, server, slots, *cache)
        self._chunks = Chunks()

    def meet(self, servers: list["PrefixAwareBalancer"]) -> None:
        """They tell each other what ranks have computed."""
        self._peers = [each for each in servers if each is not self]
        self._chunks = servers[0]._chunks

    def _keys(self, request: SimRequest) -> Keys:
        """Those of the chunks of the front-end, of which those of a trace are parts."""
        numbers, size = self._chunks.of(request), request.chunk_size
        whole = min(request.prompt_len, len(numbers) * size) // self._chunk
        ends = range(self._chunk, whole * self._chunk + 1, self._chunk)
        keys = [(numbers[(end - 1) // size], end) for end in ends]
        for memory in self._dispatch.memories if request.has_cached else ():
            memory.used(keys)
        return keys


class ContextBalancer(TokenBalancer):
    """That of decode instances: by the context of the requests in flight."""

    told = "contexts"
    rule = ContextDispatch
    _dispatch: ContextDispatch

    def __init__(
        self, ranks: int, server: ApiServer, slots: int, output_tokens: OutputTokens
    ) -> None:
        super().__init__(ranks, server, slots)
        self._output_tokens = output_tokens
        self._passed: dict[SimRequest, int] = {}
        """Tokens of the answers of requests in flight."""
        self._is_new = False

    def step_ended(self) -> None:
        """What has passed is counted once somebody asks."""
        self._is_new = True

    def choose(self, request: SimRequest) -> int:
        """Counts the request at once."""
        if self._is_new:
            self._is_new = False
            for each, before in self._passed.items():
                if (passed := self._output_tokens(each)) != before:
                    self._dispatch.generated(each.index, passed - before)
                    self._passed[each] = passed
        self._passed[request] = 0
        return super().choose(request)

    def finished(self, request: SimRequest) -> None:
        """It no longer counts."""
        del self._passed[request]
        super().finished(request)


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
    of_server: dict[str, Callable[[ApiServer], LoadBalancer]] = {
        "0.23": lambda server: Balancer023(ranks, server),
        "0.30": lambda server: Balancer030(ranks, server),
        BY_TOKENS: lambda server: TokenBalancer(ranks, server, slots),
        BY_CONTEXT: lambda s: ContextBalancer(ranks, s, slots, output_tokens),
        BY_PREFIXES: lambda s: PrefixAwareBalancer(ranks, s, slots, kv_blocks),
    }
    if name not in of_server:
        names = ", ".join((*LOAD_BALANCERS, *BEYOND))
        raise UsageError(f"--load-balancer {name}: unknown; choose from {names}.")
    made = [of_server[name](ApiServer(i, api_servers)) for i in range(api_servers)]
    own = [each for each in made if isinstance(each, PrefixAwareBalancer)]
    for one in own:
        one.meet(own)
    return made
