"""The simulator sends each request to the rank to which a real front-end sends it.

By counts of requests with balance off, by prompt tokens with balance on. A request that
decodes all the time tells when each step of the emulated device ends. The simulation
gets these times and those at which the requests came, and nothing else.
"""

import asyncio
import inspect
import random
import time
from collections.abc import Iterator
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any

import pytest
from vllm.benchmarks.dp_balance.front_end.api_servers import Dispatcher
from vllm.benchmarks.dp_balance.front_end.coordinator import Coordinator, Publication
from vllm.benchmarks.dp_balance.front_end.load_balancers import (
    FIRST,
    Balancer023,
    Balancer030,
    LoadBalancer,
    TokenBalancer,
)
from vllm.benchmarks.dp_balance.loop import run
from vllm.benchmarks.dp_balance.policies import make_controller
from vllm.benchmarks.dp_balance.rank.engine import Engine
from vllm.benchmarks.dp_balance.rank.limits import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic, Frontend
from vllm.benchmarks.dp_balance.requests.request import SimRequest
from vllm.benchmarks.dp_balance.step_time.model import CostModel, Loads
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import DPLBAsyncMPClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RANKS = 3
SLOTS = 4
STEPS = 24
DEVICE = {"t0": 0.8, "a": 0.0, "b": 0.0, "c": 0.0}
OFFSETS = (0.05, 0.07, 0.18, 0.25, 0.32, 0.39, 0.46, 0.53, 0.6)
"""Seconds after the end of a step at which requests may be sent: far from the
publications, which come at its end and 100 ms later, and from the end of the next."""


class Sent:
    """What happened to the requests of one real run; times from the first one."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.lengths: list[tuple[int, int]] = []
        self.ranks: list[int] = []
        self.ends: list[float] = []
        """Of the steps."""


async def serve(model: Path, policy: str) -> Sent:
    """Sends requests to a real engine and notes where they go."""
    arguments = AsyncEngineArgs(
        model=str(model),
        data_parallel_size=RANKS,
        data_parallel_balance=policy,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=256,
        max_model_len=256,
        # So many that no rank counts as short of them.
        num_gpu_blocks_override=64,
        enforce_eager=True,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        async_scheduling=False,
        additional_config={"emulated_device": DEVICE},
    )
    engine = AsyncLLM.from_engine_args(arguments)
    client: Any = engine.engine_core
    seen = Sent()
    choose = client.get_core_engine_for_request
    order: dict[str, int] = {}

    def spy(request: Any) -> Any:
        seen.times.append(time.monotonic())
        chosen = choose(request)
        seen.ranks.append(client.core_engines.index(chosen))
        seen.lengths.append(order[request.request_id.split("-")[0]])
        return chosen

    client.get_core_engine_for_request = spy

    async def ask(name: str, prompt: int, output: int) -> None:
        order[name] = (prompt, output)
        parameters = SamplingParams(
            max_tokens=output, ignore_eos=True, detokenize=False
        )
        prompts = {"prompt_token_ids": [7] * prompt}
        async for _ in engine.generate(prompts, parameters, name):
            if name == "clock":
                seen.ends.append(time.monotonic())
                if len(seen.ends) < STEPS - 7:
                    asyncio.get_running_loop().create_task(send(len(seen.ends)))

    tasks = []

    async def send(step: int) -> None:
        rng = random.Random(step)
        start = time.monotonic()
        for number, offset in enumerate(OFFSETS):
            if rng.random() < 0.5:
                await asyncio.sleep(max(0.0, start + offset - time.monotonic()))
                asked = ask(f"{step}.{number}", rng.randint(5, 150), rng.randint(1, 6))
                tasks.append(asyncio.create_task(asked))

    try:
        await ask("clock", 5, STEPS)
        await asyncio.gather(*tasks)
    finally:
        engine.shutdown()
    start = seen.times[0]
    seen.times = [moment - start for moment in seen.times]
    seen.ends = [moment - start for moment in seen.ends]
    return seen


class MeasuredSteps(CostModel):
    """Steps take as long as they did."""

    durations: Iterator[float]

    def step_seconds(self, loads: Loads) -> float:
        """The next one."""
        return next(self.durations)


class Follower:
    """Asks a load balancer, notes whether the server chose the same, and follows it."""

    def __init__(self, balancer: LoadBalancer, ranks: list[int]) -> None:
        self._balancer = balancer
        self._theirs = ranks
        self.same: list[bool] = []
        self.first_token, self.finished = balancer.first_token, balancer.finished
        self.publish = balancer.publish

    def choose(self, request: SimRequest) -> int:
        """The rank that the server chose."""
        theirs = self._theirs[request.index]
        self.same.append(self._balancer.best() == theirs)
        self._balancer.sent(request, theirs)
        return theirs


COUNTS_IN_FLIGHT = "engine_inflight" in inspect.getsource(DPLBAsyncMPClient)
BY_COUNTS, BY_OTHER_COUNTS = (Balancer023, Balancer030)[
    :: -1 if COUNTS_IN_FLIGHT else 1
]
"""As this release chooses with balance off, and as others do."""


def agreement(seen: Sent, policy: str, by_counts: type = BY_COUNTS) -> float:
    """Share of the requests that the simulation sends where the server did."""
    requests = [SimRequest(i, *lengths) for i, lengths in enumerate(seen.lengths)]
    for request, time_sent in zip(requests, seen.times, strict=True):
        request.due = time_sent
    by_tokens = policy != "off"
    balancer = TokenBalancer(RANKS, FIRST, SLOTS) if by_tokens else by_counts(RANKS)
    follower = Follower(balancer, seen.ranks)
    starts = [0.0, *seen.ends]
    steps = MeasuredSteps(t0=1, a=0, b=0, c=0)
    measured = [b - a for a, b in pairwise(starts)]
    # Requests that were sent late may outlast the clock.
    durations = chain(measured, repeat(DEVICE["t0"]))
    object.__setattr__(steps, "durations", durations)
    run(
        Engine(RankLimits(RANKS, SLOTS, 256), max_model_len=256),
        make_controller(policy),
        requests,
        ClientTraffic(self_timed=True),
        Dispatcher(RANKS, [follower], by_tokens),
        steps,
        random.Random(0),
        frontend=Frontend(serial_seconds=0.0, jitter_seconds=0.0),
    )
    return sum(follower.same) / len(follower.same)


def agreeing_run(model: Path, policy: str) -> tuple[Sent, float]:
    """A run in which the machine did not delay requests past a publication or the end
    of a step, out of three; the best if there is none."""
    runs = []
    for _ in range(3):
        seen = asyncio.run(serve(model, policy))
        assert len(seen.ranks) > 60
        runs.append((agreement(seen, policy), seen))
        if runs[-1][0] >= 0.8:
            break
    found, seen = max(runs, key=lambda each: each[0])
    print(f"{policy}: {found:.0%} of {len(seen.ranks)}, run {len(runs)}")
    assert found >= 0.8
    return seen, found


def test_requests_go_where_the_server_sends_them(
    moe_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, found = agreeing_run(moe_model, "off")
    others = agreement(seen, "off", BY_OTHER_COUNTS)
    assert others < found - 0.1, "the case does not tell releases apart"
    if COUNTS_IN_FLIGHT:
        return  # its own counts are exact: it hardly looks at the published ones

    def every_100_ms(self: Any, until: float) -> list[Publication]:
        return [Publication(until, tuple(self._counts))]

    monkeypatch.setattr(Coordinator, "published", every_100_ms)
    assert agreement(seen, "off") < found - 0.1, "the case does not tell models apart"


def test_requests_go_by_tokens_with_balance_on(moe_model: Path) -> None:
    seen, found = agreeing_run(moe_model, "cap")
    assert agreement(seen, "off") < found - 0.1, "the case does not tell rules apart"
