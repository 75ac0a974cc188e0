"""Upstream's front-end and coordinator without processes, our hooks and models."""

import asyncio
import copy
import multiprocessing
import random
from collections import Counter

import pytest
import torch
from vllm.lora.request import LoRARequest
from vllm.pooling_params import LateInteractionParams, PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import hash_block_tokens
from vllm.v1.core.sched.balance.front import front_end as module
from vllm.v1.core.sched.balance.front.board import SharedBoard, create_board
from vllm.v1.core.sched.balance.front.front_end import BalanceDispatch, PromptHasher
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core_client import DPLBAsyncMPClient

from dp_loop import NOT_GIVEN
from rivals.routers import Balancer030
from schedulers import image
from vllm_balance.core.dispatch import TO_ATTEND, TO_COMPUTE, Dispatch
from vllm_balance.simulator.front_end.backends import (
    FIRST,
    ApiServer,
    Backends,
    LoadBalancer,
)
from vllm_balance.simulator.front_end.load_balancers import (
    LOAD_BALANCERS,
    Balancer023,
)
from vllm_balance.simulator.rank.counts import RankCounts
from vllm_balance.simulator.requests.request import SimRequest

SLOTS = 4
CHOOSES = DPLBAsyncMPClient.get_core_engine_for_request.__code__.co_names
IN_FLIGHT = "engine_inflight" in CHOOSES
"""Whether this release looks at its own requests in flight, as from 0.30 on."""


def front_end(ranks, dispatch=None, server=FIRST):
    """A client without its `__init__`, which would start engines."""
    client = object.__new__(DPLBAsyncMPClient)
    client.core_engines = [b"%d" % rank for rank in range(ranks)]
    client.lb_engines = [[0, 0, 0.0][: 2 + IN_FLIGHT] for _ in range(ranks)]
    client.client_count, client.client_index = server.count, server.index
    client.eng_start_index = ranks * server.index // server.count
    client.reqs_in_flight = {}
    later = {"streaming_reqs": set(), "engine_inflight": Counter()}
    vars(client).update(later)  # of releases after the pin
    if dispatch is not None:
        client.balance_dispatch = dispatch
    return client


def made(**fields):
    """A request with a prompt of two chunks and a little."""
    given = dict.fromkeys(NOT_GIVEN) | {
        "request_id": "one",
        "prompt_token_ids": list(range(1100)),
        "sampling_params": SamplingParams(),
        "arrival_time": 0.0,
    }
    return EngineCoreRequest(**given | fields)


def send(client, name, tokens, pin=None):
    request = made(request_id=name, prompt_token_ids=tokens, data_parallel_rank=pin)
    rank = client.core_engines.index(client.get_core_engine_for_request(request))
    if dispatch := getattr(client, "balance_dispatch", None):
        dispatch.sent(request)
    return int(rank)


def see(client, outputs):
    asyncio.run(DPLBAsyncMPClient.process_engine_outputs(client, outputs))


def test_requests_go_to_ranks_that_take_them_while_ranks_come_and_go():
    """In a resize, engines, counts and what a client may pin to change in turn."""
    client = front_end(2, BalanceDispatch(Dispatch(2, SLOTS)))

    def ranks(count):
        sent = len(client.reqs_in_flight)
        return [send(client, f"{sent + i}", [5] * 10) for i in range(count)]

    assert ranks(4) == [0, 1] * 2
    client.core_engines = [*client.core_engines, b"2"]
    assert {*ranks(4)} == {0, 1}
    assert send(client, "pinned", [5] * 10, pin=2) == 2
    client.lb_engines = [[0, 0] for _ in range(3)]
    assert ranks(4) == [2] * 4
    client.core_engines, client.lb_engines = [b"0"], [[0, 0]]
    assert ranks(1) == [0]
    client.lb_engines = [[0, 0] for _ in range(3)]  # sent before it heard of it
    assert ranks(1) == [0]
    see(client, EngineCoreOutputs(finished_requests={*client.reqs_in_flight}))
    assert client.balance_dispatch.dispatch.own == [(0, 0)]


def test_more_input_of_a_request_is_no_beginning_of_a_prompt():
    dispatch = Dispatch(2, SLOTS, TO_COMPUTE, None, 100, 512)
    client = front_end(2, BalanceDispatch(dispatch, PromptHasher(16)))
    assert send(client, "one", [5] * 600) == 0
    assert send(client, "other", [4] * 600) == 1
    assert send(client, "other", [6] * 600) == 1
    answers = [EngineCoreOutput(name, [7]) for name in ("one", "other")]
    see(client, EngineCoreOutputs(outputs=answers))
    assert [*map(len, dispatch.memories)] == [1, 1]


def pooling(name, query=None):
    late = query and LateInteractionParams("score_doc", query)
    parameters = PoolingParams(task="embed", late_interaction_params=late or None)
    return made(request_id=name, sampling_params=None, pooling_params=parameters)


@pytest.mark.parametrize("weights", [TO_COMPUTE, TO_ATTEND])
def test_pooling_requests_spread_unless_they_belong_together(weights):
    """Whatever ranks publish meanwhile; and nothing is left of them."""
    client = front_end(2, BalanceDispatch(Dispatch(2, 64, weights)))
    client.lb_engines = [[9000, 3], [0, 0]]

    def rank_of(request):
        rank = int(client.get_core_engine_for_request(request))
        client.balance_dispatch.sent(request)
        return rank

    burst = Counter(rank_of(pooling(f"{number}")) for number in range(20))
    assert burst == {0: 10, 1: 10}
    assert (
        len({rank_of(pooling(f"same {number}", "query")) for number in range(9)}) == 1
    )
    embedded = EngineCoreOutput("1", [], pooling_output=torch.zeros(1))
    see(client, EngineCoreOutputs(outputs=[embedded]))
    see(client, EngineCoreOutputs(finished_requests={*client.reqs_in_flight}))
    assert client.balance_dispatch.dispatch.own == [(0, 0)] * 2


def test_api_servers_know_at_once_what_the_others_do():
    """What they have sent, and what of it ranks have computed."""
    memory = create_board(multiprocessing.get_context("spawn"), 3)

    def server(index):
        board = SharedBoard(memory, index)
        dispatch = Dispatch(2, SLOTS, TO_COMPUTE, board, 100, 512)
        balance = BalanceDispatch(dispatch, PromptHasher(16))
        return front_end(2, balance, ApiServer(index, 3))

    first, second = server(0), server(1)
    send(first, "one", [5] * 1300, pin=1)
    send(first, "given up", [6] * 600, pin=1)
    assert send(second, "two", [5] * 1200) == 0, "rank 1 has enough to do"
    assert second.balance_dispatch.dispatch.own == [(1200, 1), (0, 0)]
    outputs = [EngineCoreOutput("one", [7])]
    done = {"one", "given up"}
    see(first, EngineCoreOutputs(outputs=outputs, finished_requests=done))
    see(second, EngineCoreOutputs(finished_requests={"two"}))
    assert send(second, "three", [5] * 1200) == 1, "rank 1 has it, but for 176 tokens"
    assert second.balance_dispatch.dispatch.own == [(0, 0), (176, 1)]


@pytest.mark.parametrize("several", [1, 3], ids=["one prompt", "several at a time"])
def test_the_answers_to_one_prompt_hash_it_once(monkeypatch, several):
    """As upstream makes the requests for them: copies with the same list of tokens."""
    calls = 0

    def count(*arguments):
        nonlocal calls
        calls += 1
        return hash_block_tokens(*arguments)

    monkeypatch.setattr(module, "hash_block_tokens", count)
    dispatch = Dispatch(2, 500, TO_COMPUTE, None, 100, 512)
    client = front_end(2, BalanceDispatch(dispatch, PromptHasher(16)))
    prompts = [made(prompt_token_ids=[5 + n] * 6000) for n in range(several)]
    for number in range(100):
        for prompt in prompts:
            child = copy.copy(prompt)
            child.request_id = f"{number}_{prompt.prompt_token_ids[0]}"
            child.sampling_params = child.sampling_params.clone()
            client.get_core_engine_for_request(child)
            client.balance_dispatch.sent(child)
    assert calls == several * (6000 // 512)
    other = copy.copy(prompts[0])
    other.request_id, other.cache_salt = "other", "mine"
    keys = PromptHasher(16).keys
    assert client.balance_dispatch.keys(other) == keys(other) != keys(prompts[0])


def hashed(**fields):
    return list(PromptHasher(16).keys(made(**fields)))


def test_what_makes_another_kv_cache_makes_another_key():
    plain = hashed()
    assert len(plain) == 2
    assert hashed() == hashed(request_id="two", prompt_token_ids=list(range(1400)))
    lora = LoRARequest("adapter", 1, "/adapter")
    others = [
        hashed(cache_salt="mine"),
        hashed(cache_salt="yours"),
        hashed(lora_request=lora),
        hashed(mm_features=[image("cat", 40)]),
        hashed(mm_features=[image("dog", 40)]),
        hashed(mm_features=[image("dog", 41)]),
    ]
    for place in (0, 1):
        assert len({keys[place] for keys in (plain, *others)}) == 1 + len(others)
    late = hashed(mm_features=[image("cat", 600)])
    assert (late[0], late[1] != plain[1]) == (plain[0], True)
    across = [hashed(mm_features=[image(name, 500)])[1] for name in ("cat", "dog")]
    assert across[0] != across[1]
    uncached = SamplingParams(prompt_logprobs=1)
    assert hashed(sampling_params=uncached) == []
    assert hashed(prompt_token_ids=list(range(511))) == []
    assert hashed(prompt_token_ids=None) == []


@pytest.mark.parametrize("on", [False, True], ids=["off", "on"])
@pytest.mark.parametrize("server", [FIRST, ApiServer(0, 3), ApiServer(2, 3)], ids=str)
def test_the_simulator_sends_requests_where_the_front_end_does(on, server):
    """By counts of requests with balance off, by prompt tokens with balance on."""
    ranks, rng = 4, random.Random(f"{on}{server}")
    memory = create_board(multiprocessing.get_context("spawn"), server.count)
    board = SharedBoard(memory, server.index)
    ours = BalanceDispatch(Dispatch(ranks, SLOTS, TO_COMPUTE, board)) if on else None
    client = front_end(ranks, ours, server)
    by_counts = Balancer030 if IN_FLIGHT else Balancer023
    balancer: LoadBalancer = by_counts(ranks, server)
    if on:
        backends = Backends(ranks, random.Random(0), server.count, SLOTS)
        balancer = LOAD_BALANCERS["tokens"](backends)[server.index]
    running: list[SimRequest] = []
    chosen: Counter[int] = Counter()
    for number in range(1000):
        event = rng.random()
        if event < 0.5 or not running:
            request = SimRequest(number, rng.randint(1, 500), 1)
            request.rank = balancer.choose(request)
            sent = send(client, f"{number}", [7] * request.prompt_len)
            assert sent == request.rank, f"request {number}"
            running.append(request)
            chosen[sent] += 1
        elif event < 0.7:
            request = rng.choice(running)
            balancer.first_token(request)
            outputs = [EngineCoreOutput(f"{request.index}", [7])]
            see(client, EngineCoreOutputs(outputs=outputs))
        elif event < 0.9:
            request = running.pop(rng.randrange(len(running)))
            balancer.finished(request)
            see(client, EngineCoreOutputs(finished_requests={f"{request.index}"}))
        else:
            largest = 3000 if on else SLOTS
            told = [
                RankCounts(rng.randint(0, largest), rng.randint(0, SLOTS), rng.random())
                for _ in range(ranks)
            ]
            balancer.publish(told)
            client.lb_engines = [list(each)[: 2 + IN_FLIGHT] for each in told]
    assert min(chosen.values()) > 50
