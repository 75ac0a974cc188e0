"""The routers of others, each by its name."""

import random

import pytest

from rivals.routers import ROUTERS
from vllm_balance.simulator.front_end.backends import Backends
from vllm_balance.simulator.rank.counts import RankCounts
from vllm_balance.simulator.rank.engine import Engine
from vllm_balance.simulator.rank.limits import RankLimits
from vllm_balance.simulator.requests.request import SimRequest


def balancer(name, ranks):
    (one,) = ROUTERS[name](Backends(ranks, random.Random(0)))
    return one


def choices(load_balancer, count):
    return [load_balancer.choose(SimRequest(index, 10, 10)) for index in range(count)]


def test_balancer_of_0_30_knows_its_requests_in_flight():
    tested = balancer("0.30", 3)
    assert choices(tested, 3) == [0, 1, 2]
    tested.publish([RankCounts(0, 0)] * 3)  # not yet seen by the coordinator
    ended = SimRequest(0, 10, 10)
    ended.rank = 1
    tested.finished(ended)
    assert choices(tested, 1) == [1]


def test_balancer_of_0_30_shuns_queues_on_a_full_cache():
    """As the ranks tell it: the first runs two requests, and has room for no other."""
    engine = Engine(RankLimits(2, 7, 1024, kv_blocks=101), 1000)
    for rank, count, prompt in ((0, 4, 780), (1, 9, 100)):
        for number in range(count):
            engine.add(rank, SimRequest(10 * rank + number, prompt, 9))
    for _ in range(2):
        engine.schedule()
        engine.update()
    counts = engine.counts()
    assert [each[:2] for each in counts] == [(2, 2), (2, 7)]
    assert [each.kv_usage for each in counts] == pytest.approx([0.98, 0.49], abs=0.02)
    tested = balancer("0.30", 2)
    tested.publish(counts)
    assert choices(tested, 1) == [1], "4 + 2 x 6 x 0.48 against 9"


def test_skewed_routing_is_uneven():
    ranks = choices(balancer("skewed", 4), 4000)
    numbers = sorted(ranks.count(rank) for rank in range(4))
    assert numbers[-1] > 1.5 * numbers[0]


def test_a_router_keeps_sessions_and_sends_new_ones_round():
    tested = balancer("session-affinity", 2)
    requests = [SimRequest(i, 10, 1, session=i // 2) for i in range(6)]
    assert [tested.choose(request) for request in requests] == [0, 0, 1, 1, 0, 0]


def test_trtllm_weighs_prefixes_against_load():
    """Where the prefix is, unless that rank has its share twice; not for a little."""

    def ranks(cached_tokens, waiting, first=0):
        known = {"cached_tokens": lambda rank, _: cached_tokens * (rank == 0)}
        backends = Backends(3, random.Random(0), slots=16, **known)
        (tested,) = ROUTERS["trtllm-kv-aware"](backends)
        made = [SimRequest(first + i, 1000, 1, session=i) for i in range(waiting)]
        return [rank for rank, _ in tested.deal(made)]

    assert ranks(900, 1) == [0]
    assert ranks(900, 9).count(0) == 6
    assert sorted(ranks(90, 3)) == [0, 1, 2]
    assert len({ranks(90, 1, first)[0] for first in range(9)}) == 3
