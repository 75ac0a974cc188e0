"""Load balancers, and when they learn what."""

import json
import random
from pathlib import Path

import pytest
from vllm.benchmarks.dp_balance.front_end.api_servers import Dispatcher
from vllm.benchmarks.dp_balance.front_end.coordinator import RankCounts
from vllm.benchmarks.dp_balance.front_end.load_balancers import (
    BEYOND,
    LoadBalancer,
    make_load_balancers,
)
from vllm.benchmarks.dp_balance.rank.limits import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.requests.request import SimRequest
from vllm.benchmarks.dp_balance.requests.traces import TimedTrace
from vllm.benchmarks.dp_balance.requests.workload import Workload
from vllm.benchmarks.dp_balance.scenario import Scenario, simulate
from vllm.benchmarks.dp_balance.step_time.presets import PRESETS


def request(index: int = 0, server: int = 0) -> SimRequest:
    made = SimRequest(index, 10, 10)
    made.server = server
    return made


def balancer(name: str, ranks: int, skew: float = 0.5) -> LoadBalancer:
    (one,) = make_load_balancers(name, ranks, random.Random(0), skew)
    return one


def choices(load_balancer: LoadBalancer, count: int) -> list[int]:
    ranks = []
    for index in range(count):
        sent = request(index)
        sent.rank = load_balancer.choose(sent)
        ranks.append(sent.rank)
    return ranks


@pytest.mark.parametrize("servers", [1, 4])
def test_ranks_tell_their_prompt_tokens_to_several_front_ends(servers: int) -> None:
    """Even ranks get requests with long prompts from elsewhere: only what the ranks
    tell says so."""
    balancers = make_load_balancers("tokens", 2, random.Random(0), 0.0, servers, 32)
    dispatcher = Dispatcher(2, balancers, by_tokens=True)
    dispatcher.tell(0.0, 0, 0, [RankCounts(50_000, 3), RankCounts(0, 0)])
    ranks = [dispatcher.route(0.2 + i / 1e3, request(i, i % servers)) for i in range(9)]
    assert ranks.count(1) == (9 if servers > 1 else 4)


def test_balancer_of_0_30_knows_its_requests_in_flight() -> None:
    tested = balancer("0.30", 3)
    assert choices(tested, 3) == [0, 1, 2]
    tested.publish([RankCounts(0, 0)] * 3)  # not yet seen by the coordinator
    ended = request()
    ended.rank = 1
    tested.finished(ended)
    assert choices(tested, 1) == [1]


def test_balancer_of_0_30_shuns_queues_on_a_full_cache() -> None:
    tested = balancer("0.30", 2)
    tested.publish([RankCounts(2, 2, 1.0), RankCounts(2, 7, 0.5)])
    assert choices(tested, 1) == [1], "4 + 2 x 6 x 0.5 against 9"


def test_skewed_routing_is_uneven() -> None:
    ranks = choices(balancer("skewed", 4, skew=1.0), 4000)
    numbers = sorted(ranks.count(rank) for rank in range(4))
    assert numbers[-1] > 1.5 * numbers[0]


def sessions(folder: Path, shares: bool) -> Workload:
    """A trace of 12 sessions whose prompts grow, in blocks of 64 tokens."""
    rows = []
    for turn in range(8):
        for session in range(12):
            blocks = 64 + 16 * turn
            row = {
                "timestamp": 5000 * turn + 40 * ((5 * session + turn) % 12),
                "input_length": 64 * blocks,
                "output_length": 5,
            }
            hash_ids = [1000 * session + block for block in range(blocks)]
            rows.append(row | ({"hash_ids": hash_ids} if shares else {}))
    rows.sort(key=lambda row: row["timestamp"])
    path = folder / f"{shares}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    timed = TimedTrace(chunk_hash_size=64, sec_multiplier=1e-3)
    return Workload(len(rows), trace=path, timed_trace=timed)


def computed(
    workload: Workload, load_balancer: str, **limits: int
) -> tuple[int, float]:
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
        scenario,
        "adaptive",
        on_step=lambda step: tokens.append(sum(step.loads.prefill)),
    )
    return sum(tokens), max(request.done for request in done.requests)


def test_sessions_stay_with_their_prefix(tmp_path: Path) -> None:
    """Also where KV caches hold a third of it all; and that is what is served."""
    workload = sessions(tmp_path, shares=True)
    for limits in ({}, {"kv_blocks": 1500}):
        by_tokens, _ = computed(workload, "tokens", **limits)
        by_prefixes, _ = computed(workload, "prefix-aware", **limits)
        assert by_prefixes < 0.6 * by_tokens
    served = computed(workload, "as-served", **limits)
    assert served == computed(workload, "prefix-aware", **limits)


def test_what_a_router_could_do(tmp_path: Path) -> None:
    """One that knows all computes no more than one that remembers what it sent."""
    workload = sessions(tmp_path, shares=True)
    limits = {"kv_blocks": 1500}
    found = {
        name: computed(workload, name, **limits)
        for name in ("tokens", "prefix-aware", *BEYOND)
    }
    tokens, _ = found["prefix-aware"]
    for name in ("perfect", "trtllm-kv-aware"):
        assert found[name][0] < 0.6 * found["tokens"][0], name
    assert found["perfect"][0] <= 1.05 * tokens
    assert found["trtllm"][0] > 1.5 * tokens, "it looks at no prefix"


@pytest.mark.parametrize("shared", [0, 5_000, 100_000])
def test_sessions_that_share_do_not_crowd(tmp_path: Path, shared: int) -> None:
    """Nothing, much, or all: then everybody wants the same text."""
    turns = [[0, 8192 + 1024 * i, 20, 0, 1, 128 + 16 * i, [[16 * i + 1, 16]]]
             for i in range(6)]  # fmt: skip
    turns[0][5:] = [0, [[1, 128]]]
    path = tmp_path / "sessions.jsonl"
    path.write_text(json.dumps({"block_size": 64, "requests": turns}))
    found = {}
    for name in ("tokens", "prefix-aware"):
        scenario = Scenario(
            RankLimits(4, 4, 2048, kv_blocks=4000),
            PRESETS["a3-dp4-tp4"],
            Workload(6 * 32, trace=path, session_shared=shared),
            ClientTraffic(max_concurrency=16),
            load_balancer=name,
        )
        found[name] = simulate(scenario, "adaptive")
    counts = [0] * 4
    for each in found["prefix-aware"].requests:
        counts[each.rank] += 1
    assert max(counts) < 1.3 * 48, counts
    computed = {
        name: sum(step.prefill for step in run.steps) for name, run in found.items()
    }
    ended = {name: run.steps[-1].end for name, run in found.items()}
    assert (
        computed["prefix-aware"]
        < (1.05 if shared > 9_000 else 0.7) * computed["tokens"]
    )
    assert ended["prefix-aware"] < 1.02 * ended["tokens"]


def test_a_router_keeps_sessions_and_sends_new_ones_round() -> None:
    tested = balancer("session-affinity", 2)
    requests = [SimRequest(i, 10, 1, session=i // 2) for i in range(6)]
    assert [tested.choose(request) for request in requests] == [0, 0, 1, 1, 0, 0]


def test_trtllm_deals_out_what_fits_the_longest_first() -> None:
    (tested,) = make_load_balancers("trtllm", 2, random.Random(0), slots=2)
    lengths = enumerate((10, 70, 40, 50, 9))
    requests = [SimRequest(index, length, 1) for index, length in lengths]
    dealt = tested.deal(requests)
    assert [(rank, request.index) for rank, request in dealt] == [
        *((0, 1), (1, 3), (1, 2), (0, 0)),
    ]
    for rank, request in dealt:
        request.rank = rank
    assert tested.deal([]) == []
    tested.finished(requests[2])
    assert [(rank, request.index) for rank, request in tested.deal([])] == [(1, 4)]


def test_trtllm_weighs_prefixes_against_load() -> None:
    """Where the prefix is, unless that rank has its share twice; not for a little."""

    def ranks(cached_tokens: int, waiting: int, first: int = 0) -> list[int]:
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


def test_without_shared_prefixes_requests_go_by_tokens(tmp_path: Path) -> None:
    workload = sessions(tmp_path, shares=False)
    assert computed(workload, "prefix-aware") == computed(workload, "tokens")


def test_api_servers_tell_each_other_where_prefixes_are() -> None:
    options = {"api_servers": 3, "slots": 8}
    servers = make_load_balancers("prefix-aware", 3, random.Random(0), **options)
    prompt = SimRequest(0, 2048, 1, hash_ids=tuple(range(128)))
    prompt.rank = servers[0].choose(prompt)
    servers[0].first_token(prompt)
    servers[0].finished(prompt)
    again = SimRequest(1, 2048, 1, hash_ids=tuple(range(128)))
    assert {server.choose(again) for server in servers[1:]} == {prompt.rank}
