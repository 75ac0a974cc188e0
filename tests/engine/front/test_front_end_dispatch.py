"""With balance on, front-ends dispatch by prompt tokens and prefixes, and forget."""

import asyncio
import contextlib
import random

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import StreamingInput
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.balance.front.front_end import (
    create_balance_dispatch,
    dispatch_of,
)
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineGenerateError

from schedulers import engine_config
from test_front_end import front_end, made
from vllm_balance.core.dispatch import TO_ATTEND

RANKS = 3
SLOTS = 4


@contextlib.asynccontextmanager
async def engine(model, dispatch=None):
    """With balance on, or with it off and that dispatch."""
    device = {"t0": 0.002, "a": 0.0, "b": 0.0, "c": 0.0}
    arguments = AsyncEngineArgs(
        model=str(model),
        data_parallel_size=RANKS,
        data_parallel_balance="off" if dispatch else "adaptive",
        data_parallel_dispatch=dispatch,
        distributed_executor_backend="uni",  # as `vllm serve` has it here
        max_num_seqs=SLOTS,
        max_model_len=2048,
        enforce_eager=True,
        skip_tokenizer_init=True,
        block_size=16,
        additional_config={"emulated_device": device},
    )
    running = AsyncLLM.from_engine_args(arguments)
    try:
        yield running
    finally:
        running.shutdown()


async def stream(one, times, answered):
    for _ in range(times):
        yield one
        await answered.wait()
        answered.clear()


async def ask(asked, name, prompt, output, rank=None, inputs=1, **sampling):
    """Waits for the answer. With several inputs, the prompt goes on after each."""
    parameters = SamplingParams(
        max_tokens=output, ignore_eos=True, detokenize=False, **sampling
    )
    prompts, answered = {"prompt_token_ids": prompt}, asyncio.Event()
    if inputs > 1:
        prompts = stream(StreamingInput(prompts), inputs, answered)
    answers = asked.generate(prompts, parameters, name, data_parallel_rank=rank)
    async for answer in answers:
        if answer.outputs[0].finish_reason is not None:
            answered.set()


def ranks_chosen(asked):
    """The ranks of the requests from now on, in their order."""
    client = asked.engine_core
    choose, chosen = client.get_core_engine_for_request, []

    def spy(request):
        engine_of_request = choose(request)
        chosen.append(client.core_engines.index(engine_of_request))
        return engine_of_request

    client.get_core_engine_for_request = spy
    return chosen


def held(dispatch):
    """Chunks of 512 tokens that each rank is believed to have."""
    return [*map(len, dispatch.memories)]


async def nothing_is_left(dispatch):
    for _ in range(2400):  # a busy machine takes its time
        if dispatch.own == [(0, 0)] * RANKS:
            break
        await asyncio.sleep(0.05)
    assert dispatch.own == [(0, 0)] * RANKS


def grown(session, turn):
    """The prompt of a session, which contains that of the turn before."""
    return [3 + session] * (1100 + 100 * turn)


async def keep_to_their_ranks(asked):
    """Sessions, of which the first request was pinned."""
    homes = {0: 2, 1: 0, 2: 1}
    client = asked.engine_core
    chosen, dispatch = ranks_chosen(asked), client.balance_dispatch.dispatch
    blocks = asked.vllm_config.cache_config.num_gpu_blocks // RANKS
    assert {memory._most for memory in dispatch.memories} == {blocks // 32}
    for session, home in homes.items():
        await ask(asked, f"{session} first", grown(session, 0), 2, rank=home)
    for turn in (1, 2):
        for session in (1, 0, 2):
            await ask(asked, f"{session} {turn}", grown(session, turn), 2)
    assert chosen[3:] == [0, 2, 1] * 2
    assert held(dispatch) == [2] * RANKS
    await ask(asked, "other", [3] * 600 + [9] * 600, 2)
    assert chosen[-1] == homes[0]
    assert held(dispatch) == [2, 2, 3]
    await nothing_is_left(dispatch)


def test_a_prompt_goes_where_its_prefix_is_on_a_dense_models_ranks(dense_model):
    async def serve():
        async with engine(dense_model, "prefixes") as asked:
            await keep_to_their_ranks(asked)

    asyncio.run(serve())


def test_a_prompt_goes_where_its_prefix_is_and_aborts_leave_nothing(moe_model):
    """Clients give up before the first token, after it, and at the end; some ask for
    what no message to a rank can hold, or for several answers. Then some send more
    input, alone and each after its answer: under load that kills upstream's engine,
    with balance off as well (issue 52693 there)."""
    rng = random.Random(2)

    async def serve():
        async with engine(moe_model) as asked:
            await keep_to_their_ranks(asked)
            dispatch = asked.engine_core.balance_dispatch.dispatch

            async def client(number):
                tokens = [3 + number % 50] * rng.choice((4, 20, 50, 600))
                output = rng.randint(1, 30)
                odd = rng.choice(({}, {}, {"n": 2}, {"extra_args": {"a": object()}}))
                request = ask(asked, f"{number}", tokens, output, **odd)
                with contextlib.suppress(TimeoutError, EngineGenerateError):
                    await asyncio.wait_for(request, rng.choice((0.01, 0.1, 0.5, 60)))

            busiest = 0
            for wave in range(4):
                clients = [client(100 * wave + i) for i in range(100)]
                tasks = [asyncio.create_task(each) for each in clients]
                while not all(task.done() for task in tasks):
                    busiest = max(
                        busiest, sum(requests for _, requests in dispatch.own)
                    )
                    await asyncio.sleep(0.01)
                await asyncio.gather(*tasks)
            assert busiest > RANKS * SLOTS
            for number, limit in enumerate((60, 0.005, 0.02)):
                request = ask(asked, f"more {number}", [3] * 50, 2, inputs=3)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(request, limit)
            await nothing_is_left(dispatch)
            assert not dispatch._requests
            assert any(held(dispatch))
            assert max(held(dispatch)) <= 50 + 3

    asyncio.run(serve())


TRANSFER = {"kv_connector": "ExampleConnector", "kv_role": "kv_producer"}
PREFILL = {"kv_transfer_config": TRANSFER}
DECODE = {"kv_transfer_config": TRANSFER | {"kv_role": "kv_consumer"}}


def created(config):
    client = front_end(2)
    client.vllm_config = config
    return create_balance_dispatch(client)


@pytest.mark.parametrize(
    ("expected", "balance", "chosen", "options"),
    [
        ("vllm", "off", None, {}),
        ("vllm", "off", None, DECODE),
        ("prefixes", "off", "prefixes", {}),
        ("tokens", "off", "tokens", PREFILL),
        ("context", "off", "context", {}),
        ("prefixes", "cap", None, {}),
        ("vllm", "cap", "vllm", {}),
        ("prefixes", "adaptive", None, PREFILL),
        ("context", "adaptive", None, DECODE),
        ("tokens", "adaptive", "tokens", DECODE),
        ("vllm", "adaptive", "vllm", DECODE),
    ],
)
def test_which_dispatch_a_configuration_means(
    moe_model, expected, balance, chosen, options
):
    config = engine_config(
        moe_model,
        data_parallel_size=2,
        data_parallel_balance=balance,
        data_parallel_dispatch=chosen,
        **{"enable_prefix_caching": True} | options,
    )
    assert dispatch_of(config) == expected
    config.cache_config.num_gpu_blocks = 200
    dispatch = created(config)
    if dispatch is None:
        assert expected == "vllm"
        return
    assert expected == (
        "context"
        if dispatch.dispatch._weights == TO_ATTEND
        else "prefixes"
        if dispatch.keys(made())
        else "tokens"
    )
    chunks = 100 * 16 // 512 if expected == "prefixes" else 0
    assert dispatch.dispatch.memories[0]._most == chunks


def test_without_a_cache_prefixes_do_not_count(moe_model):
    config = engine_config(moe_model, data_parallel_size=2, data_parallel_balance="cap")
    dispatch = created(config)
    assert dispatch is not None
    assert not dispatch.keys(made())


@pytest.mark.parametrize(
    "outside", [{}, {"data_parallel_size": 2, "data_parallel_rank": 0}]
)
def test_a_dispatch_needs_ranks_to_choose_among(moe_model, outside):
    with pytest.raises(ValueError, match="its clients choose the rank"):
        engine_config(moe_model, data_parallel_dispatch="tokens", **outside)
