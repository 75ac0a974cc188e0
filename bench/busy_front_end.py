"""A front-end that sends short requests: what its event loop does for each of them."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.balance.front_end import BalanceDispatch
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import DPLBAsyncMPClient

SHORT, IN_FLIGHT = 100, 256
"""Prompt tokens of a request, and requests in flight."""


def request(name: str, tokens: Sequence[int]) -> EngineCoreRequest:
    """A request for one token, as it gets to the client."""
    sampling = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
    empty = dict.fromkeys(("mm_features", "pooling_params", "lora_request"))
    empty |= dict.fromkeys(("cache_salt", "data_parallel_rank"))
    return EngineCoreRequest(
        name, list(tokens), sampling_params=sampling, arrival_time=0.0, **empty
    )


def choice(ranks: int, calls: int, dispatch: BalanceDispatch | None) -> list[float]:
    """Microseconds of a client's hooks, from the choice of a rank to the end."""
    client: Any = object.__new__(DPLBAsyncMPClient)  # which would start engines
    found = {
        "core_engines": [b"%d" % rank for rank in range(ranks)],
        "lb_engines": [[0, 0] for _ in range(ranks)],
        "reqs_in_flight": {},
        "client_count": 1,
        "eng_start_index": 0,
        "balance_dispatch": dispatch,
    }
    vars(client).update(found)
    times = []
    requests = [request(f"{i}", range(i, i + SHORT)) for i in range(calls + IN_FLIGHT)]
    for number, new in enumerate(requests):
        done = requests[number - IN_FLIGHT].request_id
        first = EngineCoreOutputs(outputs=[EngineCoreOutput(done, [7])])
        last = EngineCoreOutputs(finished_requests={done})
        start = time.perf_counter_ns()
        client.get_core_engine_for_request(new)
        if dispatch is not None:
            dispatch.sent(new)
        for outputs in (first, last) if number >= IN_FLIGHT else ():
            with contextlib.suppress(StopIteration):
                client.process_engine_outputs(client, outputs).send(None)
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times[IN_FLIGHT:]


async def event_loop(model: Path, calls: int) -> list[float]:
    """Microseconds of processor time of a whole front-end, for each short request.

    With vLLM's own dispatch, four ranks of the emulated device, and no tokenizer.
    """
    device = {"t0": 0.005, "a": 0.0, "b": 0.0, "c": 0.0}
    arguments = AsyncEngineArgs(
        str(model),
        data_parallel_size=4,
        max_num_seqs=IN_FLIGHT // 4,
        skip_tokenizer_init=True,
        additional_config={"emulated_device": device},
        data_parallel_dispatch="vllm",
    )
    engine = AsyncLLM.from_engine_args(arguments)
    numbers = iter(range(10**9))
    sampling = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)

    async def client(count: int) -> None:
        for _ in range(count):
            prompt: Any = {"prompt_token_ids": [5] * SHORT}
            async for _ in engine.generate(prompt, sampling, f"{next(numbers)}"):
                pass

    times = []
    for _ in range(12):
        start = time.thread_time_ns()
        share_of_one = max(1, calls // IN_FLIGHT)
        await asyncio.gather(*(client(share_of_one) for _ in range(IN_FLIGHT)))
        spent = (time.thread_time_ns() - start) / 1e3
        times.append(spent / (share_of_one * IN_FLIGHT))
    engine.shutdown()
    return times[2:]
