"""The simulator: cost, clients, load balancers, baselines and whole runs."""

import itertools
import json
import math
import random
import statistics
from dataclasses import replace

import pytest

from vllm_balance.errors import UsageError
from vllm_balance.simulator.loop import StepRecord
from vllm_balance.simulator.metrics import measure
from vllm_balance.simulator.rank.engine import Engine
from vllm_balance.simulator.rank.gate import GatedRank
from vllm_balance.simulator.rank.kv_cache import Blocks
from vllm_balance.simulator.rank.limits import RankLimits
from vllm_balance.simulator.requests.arrivals import Clients, ClientTraffic, Frontend
from vllm_balance.simulator.requests.request import SimRequest
from vllm_balance.simulator.scenario import (
    DECODE_SECONDS,
    Scenario,
    Workload,
    simulate,
    simulate_and_measure,
)
from vllm_balance.simulator.step_time.model import DEEPSEEK_V3_1, CostModel, Loads

LIMITS = RankLimits(ranks=4, max_num_seqs=32, max_num_batched_tokens=4096)
PUBLISHED = Scenario(
    LIMITS,
    DEEPSEEK_V3_1,
    Workload(512, "3500", "normal:1500:0.015"),
    ClientTraffic(max_concurrency=128),
)


SLOWEST = {"a": 0.1, "b": 0.01, "c": 0.5, "context": 0.001}
EXPERTS, SHARED = {"experts": 1.0, "experts_tokens": 10}, {"b": 0.01, "phi": 0.5}


@pytest.mark.parametrize(
    ("costs", "loads", "more"),
    [
        (SLOWEST, ([0, 0], [3, 5], [100, 0]), 0.5),
        (SLOWEST, ([0, 0], [3, 5], [900, 0]), 1.2),
        (SLOWEST, ([100, 0], [3, 5], [0, 0]), 0.3 + 1.0 + 0.5),
        # It is concave while few experts are read.
        (EXPERTS, ([0, 0], [1, 1], [0, 0]), 1 - math.exp(-0.2)),
        (EXPERTS, ([0, 0], [500, 500], [0, 0]), 1.0),
        # With padding ranks that only decode compute the longest prefill.
        (SHARED, ([100, 0], [0, 3], [0, 0]), 0.5 + 0.25),
        (SHARED | {"padded": 1}, ([100, 0], [0, 3], [0, 0]), 0.5 + 0.5),
        (SHARED | {"padded": 1}, ([100, 60], [0, 3], [0, 0]), 0.5 + 0.4),
    ],
)
def test_a_step_takes_as_long_as_the_slowest_rank_and_what_all_share(
    costs, loads, more
):
    cost = CostModel(**{"t0": 1.0, "a": 0.0, "b": 0.0, "c": 0.0} | costs)
    assert cost.step_seconds(Loads(*loads)) == pytest.approx(1 + more)


@pytest.mark.parametrize(
    ("costs", "more"),
    [({"attention": 1e-4}, (0.5, 1.5)), ({"projection": 0.02}, (0.0, 2.0))],
)
def test_prompt_tokens_cost_more_the_longer_their_context(costs, more):
    """Each for what it attends to, and a chunk for what it projects anew."""
    cost = CostModel(t0=1.0, a=0.0, b=0.01, c=0.0, **costs)
    engine = Engine(RankLimits(1, 4, 100), max_model_len=205)
    engine.add(0, SimRequest(0, 200, 5))
    seconds = []
    for _ in range(2):
        seconds.append(cost.step_seconds(engine.schedule()))
        engine.update()
    assert seconds == pytest.approx([2 + each for each in more])


def test_each_draft_costs_its_tokens_and_a_pass_of_the_drafter():
    workload = Workload(4, "1", "9")
    steps: list[StepRecord] = []
    for rates in ((), (0.5, 0.4)):
        cost = CostModel(t0=1.0, a=0.01, b=0.0, c=0.0, drafter=0.2)
        limits = replace(LIMITS, acceptance_rates=rates)
        alone = Scenario(limits, cost, workload, ClientTraffic(max_concurrency=4))
        simulate(alone, "off", on_step=steps.append)
    seconds = {max(step.loads.decodes): step.seconds for step in steps}
    assert seconds[1] == pytest.approx(1 + 0.01)
    assert seconds[3] == pytest.approx(1 + 0.03 + 2 * 0.2)


IMPOSSIBLE = {"padded": 0.5, "experts_tokens": 0, "a": -1, "t0": 0, "phi": 1.5}


@pytest.mark.parametrize("field", [*IMPOSSIBLE, "b"])
def test_impossible_constants_are_refused(field):
    with pytest.raises(UsageError, match=f"cost model: {field}"):
        replace(DEEPSEEK_V3_1, **{field: IMPOSSIBLE.get(field, math.nan)})


def test_a_session_goes_on_a_think_time_after_its_answer():
    """Two clients of a closed loop; three sessions, the first of three requests."""
    requests = [SimRequest(i, 1, 1) for i in range(5)]
    requests[1].think, requests[2].think = 20.0, 7.0
    traffic = ClientTraffic(max_concurrency=2)
    clients = Clients(requests, traffic, Frontend(), random.Random(0))
    assert [request.index for _, request in clients.arrived(100.0)] == [0, 3]
    clients.finished(requests[3], 104.0)  # another session begins
    clients.finished(requests[0], 110.0)
    assert [request.index for _, request in clients.arrived(129.0)] == [4]
    assert 130.0 < clients.next_arrival < 130.1
    assert [request.index for _, request in clients.arrived(131.0)] == [1]
    clients.finished(requests[1], 140.0)
    assert [request.index for _, request in clients.arrived(150.0)] == [2]
    assert [request.sent for request in requests] == [0.0, 130.0, 147.0, 0.0, 104.0]
    clients.finished(requests[2], 150.0)
    assert clients.next_arrival == float("inf")


def test_open_loop_has_the_rate_asked_for():
    requests = [SimRequest(i, 1, 1) for i in range(20_000)]
    Clients(requests, ClientTraffic(request_rate=50.0), Frontend(), random.Random(0))
    assert requests[-1].sent == pytest.approx(20_000 / 50, rel=0.03)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_step_brings_as_many_tokens_as_are_accepted(async_scheduling):
    rates = 0.85, 0.65, 0.5
    drafted = replace(
        PUBLISHED,
        limits=replace(LIMITS, acceptance_rates=rates),
        workload=Workload(32, "500", "400"),
        async_scheduling=async_scheduling,
    )
    steps: list[StepRecord] = []
    run = simulate(drafted, "off", 1, on_step=steps.append)
    decoded = sum(sum(step.loads.decodes) for step in steps)
    gained = sum(step.tokens for step in run.steps) - 32
    assert gained == 32 * 399
    # Drafts beyond the last token bring nothing, nor does a step after it.
    assert gained / decoded == pytest.approx(3 / 4, rel=0.03)
    assert {tokens % 4 for step in steps for tokens in step.loads.decodes} == {0}
    plain = simulate(replace(drafted, limits=LIMITS), "off", 1)
    assert len(plain.steps) / len(steps) == pytest.approx(3, rel=0.2)


def test_a_prefill_instance_ends_requests_at_their_first_token(tmp_path):
    """The next turn of a session comes once another instance has answered."""
    turn = {"in": 64, "out": 100, "think_time": 2.0, "hash_ids": [1]}
    session = {"block_size": 64, "requests": [turn, turn | {"in": 900}]}
    (path := tmp_path / "trace.jsonl").write_text(json.dumps(session))
    workload = Workload(2, trace=path)
    run = simulate(replace(PUBLISHED, workload=workload, role="prefill"), "adaptive")
    first, second = run.requests
    assert first.done == first.first_token
    assert second.sent == pytest.approx(first.done + 2.0 + 100 * DECODE_SECONDS)
    assert measure(run).total_output_tokens == 2


@pytest.mark.parametrize("kv_blocks", [None, 170])
def test_prompts_reach_a_decode_instance_computed(kv_blocks):
    """They are computed again after a preemption, and nothing is held."""
    steps: list[StepRecord] = []
    decode = replace(
        PUBLISHED,
        limits=RankLimits(1, 4, 4096, kv_blocks),
        workload=Workload(8, "600", "100"),
        role="decode",
    )
    run = simulate(decode, "align", on_step=steps.append)
    assert {request.output_len for request in run.requests} == {100}
    assert not any(any(step.held) for step in steps)
    assert max(step.loads.context[0] for step in steps) >= 4 * 600
    computed = sum(step.loads.prefill[0] for step in steps)
    assert (computed > 0) == (kv_blocks is not None)


@pytest.mark.parametrize("rates", [(), (1.0,)])
@pytest.mark.parametrize("kv_blocks", [None, 10])
def test_what_has_passed_of_an_answer_is_known(rates, kv_blocks):
    """Also of one that is preempted."""
    engine = Engine(RankLimits(1, 2, 100, kv_blocks, rates), max_model_len=90)
    requests = [SimRequest(i, 60, 30) for i in range(2)]
    for request in requests:
        request.drafts = itertools.repeat(len(rates))
        engine.add(0, request)
    passed = []
    for _ in range(11):
        engine.schedule()
        engine.update()
        passed.append([engine.output_tokens(each) for each in requests])
    first, second = zip(*passed, strict=True)
    expected = tuple(1 + step * (1 + len(rates)) for step in range(11))
    assert first == expected
    if kv_blocks is None:
        assert second == (0, *expected[:-1])
    else:
        assert list(second) == sorted(second)
        assert 1 < second[-1] == second[-2]


def test_a_prompt_begins_where_all_ranks_have_it_cached():
    """And what is cached of it counts as context."""
    cached = Workload(8, "1000", "1", prefix_share=0.9, num_prefixes=1)
    cached = replace(cached, prefixes_cached=True)
    steps: list[StepRecord] = []
    scenario = replace(PUBLISHED, workload=cached, load_balancer="as-served")
    run = simulate(scenario, "adaptive", on_step=steps.append)
    assert {request.cached for request in run.requests} == {896}
    assert sum(sum(step.loads.prefill) for step in steps) == 8 * 104
    attended = sum(sum(step.loads.attended) for step in steps)
    assert attended == 8 * 104 * (896 + 52)
    assert len({request.rank for request in run.requests}) == LIMITS.ranks


@pytest.mark.parametrize(("preempted", "order"), [(False, [5, 90]), (True, [90, 5])])
def test_short_prompts_pass_long_ones_but_not_preempted_ones(preempted, order):
    rank = GatedRank(LIMITS, Blocks(LIMITS), async_scheduling=False, short_first=True)
    for number, tokens in enumerate((90, 5)):
        rank.add(SimRequest(number, tokens, 5))
    rank._waiting[0].preempted = preempted
    for step in (1, 2):
        rank.measure(0, step, float(step), None)
    assert [work.request.prompt_len for work in rank._waiting] == order


def test_requests_are_drawn_from_the_distribution():
    rng = random.Random(0)
    scenario = Workload(2000, "uniform:10:20", "lognormal:100:0.5:300")
    requests = scenario.requests(rng)
    assert {request.prompt_len for request in requests} == set(range(10, 21))
    outputs = sorted(request.output_len for request in requests)
    assert outputs[1000] == pytest.approx(100, rel=0.1)
    assert outputs[-1] == 300


def test_requests_take_as_long_where_launches_compute_the_step():
    """As on ranks that compute on their own cores; the same costs are learned."""
    at_once = Scenario(
        RankLimits(2, 8, 1024),
        CostModel(t0=0.044, a=0.0, b=1.8e-3, c=0.0, phi=0.4, noise=0.1),
        Workload(160, "uniform:80:720", "uniform:10:86"),
        ClientTraffic(max_concurrency=16),
        async_scheduling=True,
    )
    mean, later = (
        statistics.fmean(
            simulate_and_measure(
                replace(at_once, cost=replace(at_once.cost, launch=launch)),
                "adaptive",
                seed,
            ).mean_e2el_ms
            for seed in range(4)
        )
        for launch in (0.0, 1.0)
    )
    assert later == pytest.approx(mean, rel=0.02)
