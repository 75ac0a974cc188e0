"""Load balancers, and when they learn what."""

import json
import random

import pytest
from vllm.benchmarks.dp_balance.front_end.coordinator import RankCounts
from vllm.benchmarks.dp_balance.front_end.load_balancers import (
    BEYOND,
    make_load_balancers,
)
from vllm.benchmarks.dp_balance.rank.engine import Engine
from vllm.benchmarks.dp_balance.rank.limits import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.requests.request import SimRequest
from vllm.benchmarks.dp_balance.requests.traces import TimedTrace
from vllm.benchmarks.dp_balance.requests.workload import Workload
from vllm.benchmarks.dp_balance.scenario import Scenario, simulate
from vllm.benchmarks.dp_balance.step_time.presets import PRESETS


def request(index=0, server=0):
    made = SimRequest(index, 10, 10)
    made.server = server
    return made


def balancer(name, ranks):
    (one,) = make_load_balancers(name, ranks, random.Random(0))
    return one


def choices(load_balancer, count):
    ranks = []
    for index in range(count):
        sent = request(index)
        sent.rank = load_balancer.choose(sent)
        ranks.append(sent.rank)
    return ranks


def test_balancer_of_0_30_knows_its_requests_in_flight():
    tested = balancer("0.30", 3)
    assert choices(tested, 3) == [0, 1, 2]
    tested.publish([RankCounts(0, 0)] * 3)  # not yet seen by the coordinator
    ended = request()
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


def sessions(folder, shares):
    """A trace of 12 sessions whose prompts grow, in blocks of 64 tokens."""
    rows = []
    for turn in range(8):
        for session in range(12):
            blocks, when = 64 + 16 * turn, 40 * ((5 * session + turn) % 12)
            row = {"timestamp": 5000 * turn + when, "input_length": 64 * blocks}
            row["output_length"] = 5
            hash_ids = [1000 * session + block for block in range(blocks)]
            rows.append(row | ({"hash_ids": hash_ids} if shares else {}))
    rows.sort(key=lambda row: row["timestamp"])
    path = folder / f"{shares}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    timed = TimedTrace(chunk_hash_size=64, sec_multiplier=1e-3)
    return Workload(len(rows), trace=path, timed_trace=timed)


def computed(workload, load_balancer, **limits):
    """Prompt tokens that were computed, and when the last request ended."""
    scenario = Scenario(
        RankLimits(4, 8, 2048, **limits),
        PRESETS["a3-dp4-tp4"],
        workload,
        ClientTraffic(self_timed=True),
        load_balancer=load_balancer,
    )
    tokens: list[int] = []
    done = simulate(
        scenario, "adaptive", on_step=lambda step: tokens.extend(step.loads.prefill)
    )
    return sum(tokens), max(request.done for request in done.requests)


def test_sessions_stay_with_their_prefix(tmp_path):
    """Also where KV caches hold a third of it; as early as if one looked into them."""
    workload = sessions(tmp_path, shares=True)
    roomy = [computed(workload, name)[0] for name in ("prefix-aware", "tokens")]
    assert roomy[0] < 0.6 * roomy[1]
    names = ("tokens", "prefix-aware", "as-served", *BEYOND)
    found = {name: computed(workload, name, kv_blocks=1500) for name in names}
    assert found["as-served"] == found["prefix-aware"]
    for name in ("prefix-aware", *BEYOND[1:]):
        assert found[name][0] < 0.6 * found["tokens"][0], name
    assert found["prefix-aware"][1] <= 1.02 * found["trtllm-kv-aware"][1]


def test_a_router_keeps_sessions_and_sends_new_ones_round():
    tested = balancer("session-affinity", 2)
    requests = [SimRequest(i, 10, 1, session=i // 2) for i in range(6)]
    assert [tested.choose(request) for request in requests] == [0, 0, 1, 1, 0, 0]


def test_trtllm_weighs_prefixes_against_load():
    """Where the prefix is, unless that rank has its share twice; not for a little."""

    def ranks(cached_tokens, waiting, first=0):
        (tested,) = make_load_balancers(
            *("trtllm-kv-aware", 3, random.Random(0)),
            slots=16,
            cached=lambda rank, request: cached_tokens if rank == 0 else 0,
        )
        made = [SimRequest(first + i, 1000, 1, session=i) for i in range(waiting)]
        return [rank for rank, _ in tested.deal(made)]

    assert ranks(900, 1) == [0]
    assert ranks(900, 9).count(0) == 6
    assert sorted(ranks(90, 3)) == [0, 1, 2]
    assert len({ranks(90, 1, first)[0] for first in range(9)}) == 3


def test_api_servers_tell_each_other_where_prefixes_are():
    options = {"api_servers": 3, "slots": 8}
    servers = make_load_balancers("prefix-aware", 3, random.Random(0), **options)
    prompt = SimRequest(0, 2048, 1, hash_ids=tuple(range(128)))
    prompt.rank = servers[0].choose(prompt)
    servers[0].first_token(prompt)
    servers[0].finished(prompt)
    again = SimRequest(1, 2048, 1, hash_ids=tuple(range(128)))
    assert {server.choose(again) for server in servers[1:]} == {prompt.rank}


def test_by_context_the_answer_that_has_passed_counts():
    (tested,) = make_load_balancers(
        *("context", 2, random.Random(0)),
        slots=8,
        output_tokens=lambda sent: 5000 * (sent.index == 0),
    )
    short, long = SimRequest(0, 10, 9000), SimRequest(1, 4000, 9)
    short.rank, long.rank = tested.choose(short), tested.choose(long)
    assert (short.rank, long.rank) == (0, 1)
    assert tested.choose(SimRequest(2, 1, 1)) == 1
