"""Load balancers other than the front-ends of this distribution.

The load balancer of a later vLLM, routers in front of all API servers that ignore the
state of the ranks or keep sessions together, and the dispatch of another engine, which
looks into the ranks' KV caches.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, cycle

from vllm_balance.simulator.front_end.backends import (
    FIRST,
    ApiServer,
    Backends,
    CachedTokens,
    LoadBalancer,
    MakeBalancers,
)
from vllm_balance.simulator.rank.counts import Counts, RankCounts
from vllm_balance.simulator.requests.request import SimRequest


class Balancer030(LoadBalancer):
    """The load balancer of vLLM 0.30 to 0.33.

    A rank's load is the greater of two counts: this server's requests in flight times
    the API servers, and the published count. A queue counts more where the KV cache is
    more than half full. The scan for the least starts one rank further each time.
    """

    def __init__(self, ranks: int, server: ApiServer = FIRST) -> None:
        self._server = server
        self._counts = [RankCounts(0, 0)] * ranks
        self._in_flight = [0] * ranks
        self._start = ranks * server.index // server.count

    def publish(self, counts: Counts) -> None:
        """Replaces the counts, with all that was added locally."""
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
        """Takes effect at once: the responses pass the same front-end."""
        self._in_flight[request.rank] -= 1


class BlindBalancer(LoadBalancer):
    """A router that ignores the state of the ranks; `draw` gives each rank."""

    def __init__(self, draw: Callable[[], int]) -> None:
        self._draw = draw

    def choose(self, request: SimRequest) -> int:
        """Draws a rank."""
        return self._draw()


class SessionAffinity(LoadBalancer):
    """A router in front that keeps each session where its first request went.

    New sessions go round.
    """

    def __init__(self, ranks: int) -> None:
        self._next = cycle(range(ranks)).__next__
        self._ranks: dict[int, int] = {}

    def choose(self, request: SimRequest) -> int:
        """The rank of its session."""
        if request.session not in self._ranks:
            self._ranks[request.session] = self._next()
        return self._ranks[request.session]


class DealByPrefix(LoadBalancer):
    """TensorRT-LLM's router that `enable_kv_cache_aware_routing` switches on.

    After reading `adp_router.py` of its main branch in 2026 (#12315, with the cap of
    the slots): the model was not run beside it. Requests wait in one queue until there
    is a slot on any rank, and those that leave it in a step are dealt out at once, by
    the tokens that a rank does not have cached plus its load: the prompt tokens of its
    requests that were not cached, until they end.
    """

    is_dealt = True
    LOAD_WEIGHT = 1.0
    """`kv_cache_routing_load_balance_weight`."""
    MATCH_THRESHOLD = 0.1
    """`kv_cache_routing_match_rate_threshold`: smaller matches are ignored."""
    FAIR_SHARE = 2.0
    """`kv_cache_routing_fair_share_multiplier`: a rank gets at most so many times the
    mean requests of a rank."""

    def __init__(self, ranks: int, slots: int, cached: CachedTokens) -> None:
        self._slots, self._cached = slots, cached
        self._counts, self._tokens = [0] * ranks, [0] * ranks
        self._loads: dict[int, int] = {}
        """The load of each request in flight, by its number."""
        self._queue: list[SimRequest] = []

    def deal(self, arrived: Sequence[SimRequest]) -> list[tuple[int, SimRequest]]:
        """Queues the arrived requests; returns those that fit, each with its rank."""
        self._queue += arrived
        counts = self._counts
        room = len(counts) * self._slots - sum(counts)
        batch, self._queue = self._queue[:room], self._queue[room:]
        if not batch:
            return []
        fair = math.ceil((sum(counts) + len(batch)) / len(counts))
        limit = min(self._slots, max(math.ceil(self.FAIR_SHARE * fair), *counts))
        # Prompts of one session follow on each other, the longest first.
        batch.sort(key=lambda request: (request.session, -request.prompt_len))
        return [(self._choose(request, limit), request) for request in batch]

    def _choose(self, request: SimRequest, limit: int) -> int:
        tokens, length = self._tokens, request.prompt_len
        ranks = [rank for rank, count in enumerate(self._counts) if count < limit]
        load = max(sum(tokens[rank] for rank in ranks), length)
        cached = {rank: self._cached(rank, request) for rank in ranks}
        uses_cache = max(cached.values()) > self.MATCH_THRESHOLD * length
        random.Random(request.index).shuffle(ranks)
        scores = {
            rank: length
            - uses_cache * cached[rank]
            + self.LOAD_WEIGHT * tokens[rank] / load * length
            for rank in ranks
        }
        rank = min(ranks, key=lambda rank: (scores[rank], tokens[rank]))
        self._loads[request.index] = max(0, length - cached[rank])
        self._counts[rank] += 1
        tokens[rank] += self._loads[request.index]
        return rank

    def finished(self, request: SimRequest) -> None:
        self._counts[request.rank] -= 1
        self._tokens[request.rank] -= self._loads.pop(request.index)


def one_for_all(make: Callable[[Backends], LoadBalancer]) -> MakeBalancers:
    """A router in front: all API servers have the same."""
    return lambda backends: [make(backends)] * backends.api_servers


def _round_robin(backends: Backends) -> LoadBalancer:
    return BlindBalancer(cycle(range(backends.ranks)).__next__)


def _skewed(backends: Backends) -> LoadBalancer:
    ranks, rng = range(backends.ranks), backends.rng
    weights = list(accumulate((i + 1) ** -0.5 for i in ranks))
    return BlindBalancer(lambda: rng.choices(ranks, cum_weights=weights)[0])


ROUTERS: Mapping[str, MakeBalancers] = {
    "0.30": lambda backends: [
        Balancer030(backends.ranks, server) for server in backends.servers
    ],
    "round-robin": one_for_all(_round_robin),
    "skewed": one_for_all(_skewed),
    "session-affinity": one_for_all(lambda backends: SessionAffinity(backends.ranks)),
    "trtllm-kv-aware": one_for_all(
        lambda backends: DealByPrefix(
            backends.ranks, backends.slots, backends.cached_tokens
        )
    ),
}
"""Routers by name; "skewed" draws rank i with a weight of 1 / √i, counted from 1."""
