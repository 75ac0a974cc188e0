"""A mean end-to-end time that no schedule can beat, whatever it knows beforehand."""

import heapq
import math
from collections.abc import Iterable, Sequence

from vllm.benchmarks.dp_balance.rank.limits import BLOCK_SIZE, RankLimits
from vllm.benchmarks.dp_balance.requests.request import SimRequest
from vllm.benchmarks.dp_balance.step_time.model import CostModel


def least_mean_e2el(
    requests: Sequence[SimRequest], limits: RankLimits, cost: CostModel
) -> float:
    """Seconds, for requests that are sent at these times, and steps without noise.

    Two things are taken to be better than they can be. Decodes are never interrupted,
    and prompts are computed by one machine that is as fast as all ranks together. On
    it, the sum of the times at which prompts are computed on average is least if the
    shortest goes first and interrupts others (Goemans, 1997). But a prompt is on one
    rank, so it ends by at least half of what that needs alone after that time.
    """
    in_order = sorted(requests, key=lambda request: request.sent)
    sent = [request.sent for request in in_order]
    tokens = tokens_left(in_order)
    beside = (cost.t0 + cost.c) / limits.max_num_batched_tokens
    together = (cost.b + beside) / limits.ranks
    alone = cost.b * (1 - cost.phi + cost.phi / limits.ranks) + beside
    first_tokens = sum_of_mean_times(list(zip(sent, tokens, strict=True)), together)
    first_tokens += alone * sum(tokens) / 2
    decode = sum(
        (r.output_len - 1) * (cost.t0 + cost.a + cost.context * r.prompt_len)
        for r in requests
    )
    return (first_tokens - sum(sent) + decode) / len(requests)


def tokens_left(in_order: Iterable[SimRequest]) -> list[int]:
    """Prompt tokens that each has to compute if all before it were in one KV cache.

    What two prompts share is counted to the earlier one, whoever computes it.
    """
    known: set[tuple[int, ...]] = set()
    left = []
    for request in in_order:
        chunks = tuple(request.hash_ids)
        beginnings = [chunks[:n] for n in range(1, len(chunks) + 1)]
        hits = sum(beginning in known for beginning in beginnings) * request.chunk_size
        known.update(beginnings)
        most = (request.prompt_len - 1) // BLOCK_SIZE * BLOCK_SIZE
        left.append(request.prompt_len - min(hits, most))
    return left


def sum_of_mean_times(jobs: Sequence[tuple[float, int]], per_token: float) -> float:
    """The least sum, over jobs, of the mean time at which each is worked on.

    Jobs are when each comes, in order, and its tokens, which take `per_token` seconds.
    """
    total, now = 0.0, -math.inf
    waiting: list[tuple[int, int, float]] = []  # tokens, number, seconds left
    comes = [when for when, _ in jobs[1:]] + [math.inf]
    for number, ((when, tokens), then) in enumerate(zip(jobs, comes, strict=True)):
        now = max(now, when)
        heapq.heappush(waiting, (tokens, number, tokens * per_token))
        while waiting and now < then:
            tokens, first, left = heapq.heappop(waiting)
            spent = min(left, then - now)
            total += (now + spent / 2) * spent / (tokens * per_token)
            now += spent
            if spent < left:
                heapq.heappush(waiting, (tokens, first, left - spent))
    return total
