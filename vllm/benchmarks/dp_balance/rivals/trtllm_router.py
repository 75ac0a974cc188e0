# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How TensorRT-LLM deals requests out to the ranks of its attention data parallelism.

After reading `adp_router.py` of its main branch in 2026 (#12315, with the cap of the
slots): the model was not run beside it. Requests wait in one queue until there is a
slot on any rank, and those that leave it in a step are dealt out at once: by default
the longest first, to the rank with the fewest prompt tokens of requests in flight; or
by the tokens that a rank does not have cached plus its load. A rank's load are the
prompt tokens of its requests, until they end; in the second case without those that
were cached.
"""

import math
import random
from collections.abc import Sequence

from ..front_end.load_balancer import CachedTokens, LoadBalancer
from ..requests.request import SimRequest


class DealByTokens(LoadBalancer):
    """The default router, which has one queue for all ranks."""

    is_dealt = True

    def __init__(self, ranks: int, slots: int) -> None:
        """Makes one without requests, for ranks that run so many at once."""
        self._slots = slots
        self._counts, self._tokens = [0] * ranks, [0.0] * ranks
        self._loads: dict[int, float] = {}
        """By number of a request in flight, what it counts."""
        self._queue: list[SimRequest] = []

    def deal(self, arrived: Sequence[SimRequest]) -> list[tuple[int, SimRequest]]:
        """Takes what has arrived, and deals out what fits, each with its rank."""
        self._queue += arrived
        room = len(self._counts) * self._slots - sum(self._counts)
        batch, self._queue = self._queue[:room], self._queue[room:]
        return self._deal(batch) if batch else []

    def _deal(self, batch: list[SimRequest]) -> list[tuple[int, SimRequest]]:
        total = sum(self._counts) + len(batch)
        most = max(math.ceil(total / len(self._counts)), *self._counts)
        dealt = []
        for request in sorted(batch, key=lambda request: -request.prompt_len):
            ranks = [r for r, count in enumerate(self._counts) if count < most]
            rank = min(ranks, key=lambda r: (self._tokens[r], self._counts[r], r))
            dealt.append(self._send(request, rank, request.prompt_len))
        return dealt

    def _send(
        self, request: SimRequest, rank: int, load: float
    ) -> tuple[int, SimRequest]:
        self._loads[request.index] = load
        self._counts[rank] += 1
        self._tokens[rank] += load
        return rank, request

    def finished(self, request: SimRequest) -> None:
        """It no longer counts."""
        self._counts[request.rank] -= 1
        self._tokens[request.rank] -= self._loads.pop(request.index)


LOAD_WEIGHT = 1.0
"""`kv_cache_routing_load_balance_weight`."""
MATCH_THRESHOLD = 0.1
"""`kv_cache_routing_match_rate_threshold`: less of a prompt is not looked at."""
FAIR_SHARE = 2.0
"""`kv_cache_routing_fair_share_multiplier`: so many times the mean requests of a rank
are the most that it gets."""


class DealByPrefix(DealByTokens):
    """The router that `enable_kv_cache_aware_routing` switches on."""

    def __init__(self, ranks: int, slots: int, cached: CachedTokens) -> None:
        """Makes one without requests; `cached` looks into the KV caches."""
        super().__init__(ranks, slots)
        self._cached = cached

    def _deal(self, batch: list[SimRequest]) -> list[tuple[int, SimRequest]]:
        counts, tokens = self._counts, self._tokens
        fair = math.ceil((sum(counts) + len(batch)) / len(counts))
        most = min(self._slots, max(math.ceil(FAIR_SHARE * fair), *counts))
        dealt = []
        # Prompts of one session follow on each other, the longest first.
        for request in sorted(batch, key=lambda each: (each.session, -each.prompt_len)):
            ranks = [rank for rank, count in enumerate(counts) if count < most]
            length = request.prompt_len
            load = max(sum(tokens[rank] for rank in ranks), length)
            found = {rank: self._cached(rank, request) for rank in ranks}
            looks = max(found.values()) > MATCH_THRESHOLD * length
            random.Random(request.index).shuffle(ranks)
            scores = {
                rank: length
                - looks * found[rank]
                + LOAD_WEIGHT * tokens[rank] / load * length
                for rank in ranks
            }
            rank = min(ranks, key=lambda rank: (scores[rank], tokens[rank]))
            dealt.append(self._send(request, rank, max(0, length - found[rank])))
        return dealt
