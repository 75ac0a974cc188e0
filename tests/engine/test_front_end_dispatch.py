"""With balance on, real front-ends send requests by prompt tokens and prefixes, and
forget them."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import requests
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import StreamingInput
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import (
    MultiModalFeatureSpec,
    PlaceholderRange,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.balance.dispatch import (
    REQUEST_TOKENS,
    Backlog,
    TokenDispatch,
)
from vllm.v1.core.sched.balance.front_end import BalanceDispatch, PromptHasher
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import DPLBAsyncMPClient
from vllm.v1.engine.exceptions import EngineGenerateError

from balance_tools.serving.server import Server

RANKS = 3
SLOTS = 4


def device(step_seconds: float) -> dict[str, Any]:
    return {"emulated_device": {"t0": step_seconds, "a": 0.0, "b": 0.0, "c": 0.0}}


@contextlib.asynccontextmanager
async def engine(
    model: Path, step_seconds: float, policy: str = "adaptive", **options: Any
) -> AsyncIterator[AsyncLLM]:
    arguments = AsyncEngineArgs(
        model=str(model),
        data_parallel_size=RANKS,
        data_parallel_balance=policy,
        max_num_seqs=SLOTS,
        max_model_len=2048,
        enforce_eager=True,
        skip_tokenizer_init=True,
        additional_config=device(step_seconds),
        **options,
    )
    running = AsyncLLM.from_engine_args(arguments)
    try:
        yield running
    finally:
        running.shutdown()


async def stream(one: StreamingInput, times: int) -> AsyncIterator[StreamingInput]:
    for _ in range(times):
        yield one
        await asyncio.sleep(0.05)


async def ask(
    asked: AsyncLLM,
    name: str,
    prompt: int | list[int],
    output: int,
    rank: int | None = None,
    inputs: int = 1,
    **sampling: Any,
) -> int:
    """Tokens that were answered. With several inputs, the prompt goes on."""
    parameters = SamplingParams(
        max_tokens=output, ignore_eos=True, detokenize=False, **sampling
    )
    tokens_asked = [7] * prompt if isinstance(prompt, int) else prompt
    prompts: Any = {"prompt_token_ids": tokens_asked}
    if inputs > 1:
        prompts = stream(StreamingInput(prompts), inputs)
    tokens = 0
    async for answer in asked.generate(
        prompts, parameters, name, data_parallel_rank=rank
    ):
        tokens = len(answer.outputs[0].token_ids)
    return tokens


def ranks_chosen(asked: AsyncLLM) -> list[int]:
    """The ranks of the requests from now on, in their order."""
    client: Any = asked.engine_core
    choose, chosen = client.get_core_engine_for_request, []

    def spy(request: Any) -> Any:
        engine_of_request = choose(request)
        chosen.append(client.core_engines.index(engine_of_request))
        return engine_of_request

    client.get_core_engine_for_request = spy
    return chosen


def expected_ranks(prompts: list[int], pins: list[int | None]) -> list[int]:
    """Of requests that come while nothing is computed: the rule in a plain form."""
    tokens, count, ranks = [0] * RANKS, [0] * RANKS, []
    for prompt, pin in zip(prompts, pins, strict=True):
        loads = [
            (count[rank] >= SLOTS, tokens[rank] + REQUEST_TOKENS * count[rank], rank)
            for rank in range(RANKS)
        ]
        rank = min(loads)[-1] if pin is None else pin
        tokens[rank] += prompt
        count[rank] += 1
        ranks.append(rank)
    return ranks


def test_requests_go_by_prompt_tokens_and_pins_are_kept(moe_model: Path) -> None:
    rng = random.Random(1)
    prompts = [rng.choice((5, 20, 200)) for _ in range(16)]
    pins = [rng.choice((None, None, None, 2)) for _ in prompts]

    async def serve() -> tuple[list[int], list[int]]:
        async with engine(moe_model, step_seconds=2.0) as asked:
            chosen = ranks_chosen(asked)
            answers = await asyncio.gather(
                *(
                    ask(asked, f"{i}", prompt, 2, pin)
                    for i, (prompt, pin) in enumerate(zip(prompts, pins, strict=True))
                )
            )
            return chosen, answers

    chosen, answers = asyncio.run(serve())
    expected = expected_ranks(prompts, pins)
    assert chosen == expected
    assert answers == [2] * len(prompts)
    by_requests = [rank % RANKS for rank in range(len(prompts))]
    assert expected != by_requests, "the case does not tell rules apart"


def held(dispatch: TokenDispatch) -> list[int]:
    """Chunks of 512 tokens that each rank is believed to have."""
    return [memory.held() // 512 for memory in dispatch.memories]


def grown(session: int, turn: int) -> list[int]:
    """The prompt of a session, which contains that of the turn before."""
    return [3 + session] * (1100 + 100 * turn)


def test_a_prompt_goes_where_its_prefix_is(moe_model: Path) -> None:
    """So also after a pin, and until the ranks say that they have it no longer."""
    homes = {0: 2, 1: 0, 2: 1}

    async def serve() -> None:
        async with engine(moe_model, step_seconds=0.01, block_size=16) as asked:
            client: Any = asked.engine_core
            chosen, dispatch = ranks_chosen(asked), client.balance_dispatch.dispatch
            blocks = asked.vllm_config.cache_config.num_gpu_blocks // RANKS
            assert {memory._most for memory in dispatch.memories} == {blocks // 32}
            for session, home in homes.items():
                await ask(asked, f"{session} first", grown(session, 0), 2, rank=home)
            for turn in (1, 2):
                for session in (1, 0, 2):
                    name = f"{session} {turn}"
                    await ask(asked, name, grown(session, turn), 2)
            assert chosen[3:] == [0, 2, 1] * 2
            assert held(dispatch) == [2] * RANKS
            other = [3] * 600 + [9] * 600
            await ask(asked, "other", other, 2)
            assert chosen[-1] == homes[0]
            assert held(dispatch) == [2, 2, 3]
            assert await asked.reset_prefix_cache()
            await ask(asked, "after", grown(0, 3), 2)
            assert held(dispatch) == [2, 2, 2]
            await ask(asked, "other again", other, 2)
            assert chosen[-1] == homes[0], "of it, the rank has the beginning again"

    asyncio.run(serve())


def test_without_prefix_caching_requests_go_by_prompt_tokens(moe_model: Path) -> None:
    async def serve() -> list[int]:
        options = {"enable_prefix_caching": False}
        async with engine(moe_model, step_seconds=0.01, **options) as asked:
            chosen = ranks_chosen(asked)
            await ask(asked, "pinned", grown(0, 0), 2, rank=2)
            for turn in (1, 2):
                await ask(asked, f"{turn}", grown(0, turn), 2)
            return chosen

    assert asyncio.run(serve()) == [2, 0, 0]


def made(**fields: Any) -> EngineCoreRequest:
    """A request with a prompt of two chunks and a little."""
    given = {
        "request_id": "one",
        "prompt_token_ids": list(range(1100)),
        "mm_features": None,
        "sampling_params": SamplingParams(),
        "pooling_params": None,
        "arrival_time": 0.0,
        "lora_request": None,
        "cache_salt": None,
        "data_parallel_rank": None,
    }
    return EngineCoreRequest(**given | fields)


def hashed(**fields: Any) -> list[Any]:
    return list(PromptHasher("sha256", 16).keys(made(**fields)))


def image(name: str, offset: int) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(
        data=None,
        modality="image",
        identifier=name,
        mm_position=PlaceholderRange(offset=offset, length=30),
    )


def test_what_makes_another_kv_cache_makes_another_key() -> None:
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


def test_more_input_of_a_request_is_no_beginning_of_a_prompt() -> None:
    dispatch = BalanceDispatch(
        TokenDispatch(2, SLOTS, 1, 0, 100, 512), PromptHasher("sha256", 16)
    )

    def send(name: str, tokens: list[int]) -> int | None:
        request = made(request_id=name, prompt_token_ids=tokens)
        dispatch.pin(request, [[0, 0], [0, 0]], 2)
        dispatch.sent(request)
        return request.data_parallel_rank

    assert send("one", [5] * 600) == 0
    assert send("other", [4] * 600) == 1
    assert send("other", [6] * 600) == 1
    assert held(dispatch.dispatch) == [1, 1]


def test_nothing_is_left_after_thousands_of_aborts(moe_model: Path) -> None:
    """Clients give up before the first token, after it, and at the end; some ask for
    what no message to a rank can hold, for several answers, or send more input."""
    rng = random.Random(2)

    async def serve() -> None:
        async with engine(moe_model, step_seconds=0.002) as asked:
            dispatch = asked.engine_core.balance_dispatch.dispatch

            async def client(number: int) -> None:
                tokens = [3 + number % 50] * rng.choice((4, 20, 50, 600))
                output = rng.randint(1, 30)
                odd = rng.choice(
                    ({}, {}, {"n": 2}, {"stop_token_ids": [2**64]}, {"inputs": 3})
                )
                request = ask(asked, f"{number}", tokens, output, **odd)
                with contextlib.suppress(TimeoutError, EngineGenerateError):
                    await asyncio.wait_for(request, rng.choice((0.01, 0.1, 0.5, 60)))

            busiest = 0
            for wave in range(25):
                clients = [client(100 * wave + i) for i in range(100)]
                tasks = [asyncio.create_task(each) for each in clients]
                await asyncio.sleep(0.05)
                busiest = max(busiest, sum(own.requests for own in dispatch.own))
                await asyncio.gather(*tasks)
            assert busiest > RANKS * SLOTS
            for _ in range(600):  # a busy machine takes its time
                if all(own == Backlog() for own in dispatch.own):
                    break
                await asyncio.sleep(0.05)
            assert dispatch.own == [Backlog()] * RANKS
            assert not dispatch._requests
            assert any(held(dispatch))
            assert max(held(dispatch)) <= 50
            assert not any(memory._computing for memory in dispatch.memories)

    asyncio.run(serve())


def test_several_api_servers_load_all_ranks(moe_model: Path, tmp_path: Path) -> None:
    """Each sees what the others sent in what the ranks publish; so also after clients
    have gone away in the middle."""
    options = (
        *("-dp", "2", "--data-parallel-balance", "adaptive", "--max-num-seqs", "8"),
        *("--api-server-count", "2", "--max-model-len", "256"),
        *("--no-enable-prefix-caching", "--additional-config"),
        json.dumps(device(0.02)),
    )
    with Server(tmp_path, moe_model, *options) as server:
        run_clients(server, give_up=True)
        before = server.metric("vllm:prompt_tokens_total")
        run_clients(server, give_up=False)
        (after,) = server.settled_metrics("vllm:prompt_tokens_total")
        tokens = [after[rank] - before.get(rank, 0) for rank in sorted(after)]
        assert len(tokens) == 2
        assert min(tokens) > 0.6 * max(tokens), tokens
        running = server.metric("vllm:num_requests_running")
        assert set(running.values()) == {0}


def test_a_client_that_upstreams_tests_make_is_left_alone() -> None:
    """They make one without its __init__, which would make the dispatch."""
    client = object.__new__(DPLBAsyncMPClient)
    client.core_engines = [b"0", b"1"]
    client.reqs_in_flight = {}
    later: Any = {"streaming_reqs": set(), "engine_inflight": Counter()}
    vars(client).update(later)  # of releases after the pin
    request: Any = SimpleNamespace(
        request_id="one", data_parallel_rank=1, resumable=False
    )
    assert client.get_core_engine_for_request(request) == b"1"
    ended = EngineCoreOutputs(finished_requests={"one"})
    asyncio.run(DPLBAsyncMPClient.process_engine_outputs(client, ended))
    assert client.reqs_in_flight == {}
    asyncio.run(client.abort_requests_async([]))


def test_requests_go_to_ranks_that_take_them_while_ranks_come_and_go() -> None:
    """In a resize, the engines, what the coordinator says and what a client may pin to
    change one after the other."""
    client = object.__new__(DPLBAsyncMPClient)
    client.reqs_in_flight = {}
    later: Any = {"streaming_reqs": set(), "engine_inflight": Counter()}
    client.core_engines, client.lb_engines = [b"0", b"1"], [[0, 0], [0, 0]]
    dispatch = BalanceDispatch(TokenDispatch(2, SLOTS))
    vars(client).update(later, balance_dispatch=dispatch)

    def send(name: str, rank: int | None = None) -> bytes:
        tokens = [5] * 10
        request = made(
            request_id=name, prompt_token_ids=tokens, data_parallel_rank=rank
        )
        engine = client.get_core_engine_for_request(request)
        dispatch.sent(request)
        return engine

    assert [send(f"two-{i}") for i in range(4)] == [b"0", b"1"] * 2
    client.core_engines = [*client.core_engines, b"2"]
    assert {send(f"up-{i}") for i in range(4)} == {b"0", b"1"}
    assert send("pinned", 2) == b"2"
    client.lb_engines = [[0, 0] for _ in range(3)]
    assert [send(f"three-{i}") for i in range(4)] == [b"2"] * 4
    client.core_engines, client.lb_engines = [b"0"], [[0, 0]]
    assert send("one") == b"0"
    client.lb_engines = [[0, 0] for _ in range(3)]  # sent before it heard of it
    assert send("late") == b"0"
    for name in client.reqs_in_flight:
        dispatch.see(EngineCoreOutputs(finished_requests={name}))
    assert dispatch.dispatch.own == [Backlog()]


def run_clients(server: Server, give_up: bool) -> None:
    """96 requests from 12 threads; who gives up reads no more than one token."""

    def client(number: int) -> None:
        rng = random.Random(number)
        for _ in range(8):
            body = {
                "model": str(server.model),
                "prompt": [rng.randrange(3, 90)] * rng.choice((5, 20, 180)),
                "max_tokens": 40 if give_up else 10,
                "ignore_eos": True,
                "stream": True,
            }
            with requests.post(
                f"{server.url}/v1/completions", json=body, stream=True, timeout=60
            ) as answer:
                assert answer.status_code == 200, answer.text
                for _line in answer.iter_lines():
                    if give_up:
                        break

    with ThreadPoolExecutor(12) as threads:
        for _done in threads.map(client, range(12)):
            pass
