# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What others have instead of a load balancer in each API server: one for all of them.

Routers in front that do not look at the ranks, or keep sessions together, and the
dispatch of other engines, which looks into the ranks' KV caches.
"""

import math
import random
from collections.abc import Callable, Sequence
from itertools import cycle

from ..requests.request import SimRequest
from .load_balancer import CachedTokens, LoadBalancer


class BlindBalancer(LoadBalancer):
    """A router that does not look at the ranks; it draws each rank from a source."""

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
    the tokens that a rank does not have cached plus its load. That are the prompt
    tokens of its requests that were not cached, until they end.
    """

    is_dealt = True
    LOAD_WEIGHT = 1.0
    """`kv_cache_routing_load_balance_weight`."""
    MATCH_THRESHOLD = 0.1
    """`kv_cache_routing_match_rate_threshold`: less of a prompt is not looked at."""
    FAIR_SHARE = 2.0
    """`kv_cache_routing_fair_share_multiplier`: that many times the mean requests of a
    rank are the most that it gets."""

    def __init__(self, ranks: int, slots: int, cached: CachedTokens) -> None:
        self._slots, self._cached = slots, cached
        self._counts, self._tokens = [0] * ranks, [0] * ranks
        self._loads: dict[int, int] = {}
        """By number of a request in flight, what it counts."""
        self._queue: list[SimRequest] = []

    def deal(self, arrived: Sequence[SimRequest]) -> list[tuple[int, SimRequest]]:
        """Takes what has arrived, and deals out what fits, each with its rank."""
        self._queue += arrived
        counts = self._counts
        room = len(counts) * self._slots - sum(counts)
        batch, self._queue = self._queue[:room], self._queue[room:]
        if not batch:
            return []
        fair = math.ceil((sum(counts) + len(batch)) / len(counts))
        most = min(self._slots, max(math.ceil(self.FAIR_SHARE * fair), *counts))
        # Prompts of one session follow on each other, the longest first.
        batch.sort(key=lambda each: (each.session, -each.prompt_len))
        return [(self._choose(request, most), request) for request in batch]

    def _choose(self, request: SimRequest, most: int) -> int:
        tokens, length = self._tokens, request.prompt_len
        ranks = [rank for rank, count in enumerate(self._counts) if count < most]
        load = max(sum(tokens[rank] for rank in ranks), length)
        found = {rank: self._cached(rank, request) for rank in ranks}
        looks = max(found.values()) > self.MATCH_THRESHOLD * length
        random.Random(request.index).shuffle(ranks)
        scores = {
            rank: length
            - looks * found[rank]
            + self.LOAD_WEIGHT * tokens[rank] / load * length
            for rank in ranks
        }
        rank = min(ranks, key=lambda rank: (scores[rank], tokens[rank]))
        self._loads[request.index] = max(0, length - found[rank])
        self._counts[rank] += 1
        tokens[rank] += self._loads[request.index]
        return rank

    def finished(self, request: SimRequest) -> None:
        """It no longer counts."""
        self._counts[request.rank] -= 1
        self._tokens[request.rank] -= self._loads.pop(request.index)
