# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A run described by plain values, so that it can be repeated, saved and compared."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from vllm_balance.core.policies import (
    NO_LIMITS,
    POLICIES,
    SHORT_FIRST,
    LatencyLimits,
)

from ..errors import UsageError
from .front_end.api_servers import Dispatcher
from .front_end.backends import Backends, MakeBalancers
from .front_end.load_balancers import LOAD_BALANCERS, load_balancer_of
from .loop import Cluster, Device, Leave, Run, StepRecord
from .metrics import Metrics, measure
from .policies import MakeController, PolicySpec, make_controller
from .rank.engine import Engine
from .rank.limits import RankLimits
from .requests.arrivals import Clients, ClientTraffic, Frontend
from .requests.request import SimRequest
from .requests.workload import Workload
from .step_time.model import CostModel, Loads

ROLES = ("both", "prefill", "decode")


@dataclass(frozen=True)
class Scenario:
    """Everything that a run depends on, but the policy and the seed."""

    limits: RankLimits
    cost: CostModel
    workload: Workload = field(default_factory=Workload)
    traffic: ClientTraffic = field(default_factory=ClientTraffic)
    frontend: Frontend = field(default_factory=Frontend)
    load_balancer: str = "0.23"
    async_scheduling: bool = False
    short_first: bool | None = None
    """Whether short prompts pass long ones in a rank; None for the policy's default."""
    role: str = "both"
    """The role of the instance, one of `ROLES`. A prefill instance ends requests at the
    first token. To a decode instance requests come with their KV cache, at once; no
    policy holds them there."""
    latency_limits: LatencyLimits = NO_LIMITS
    """Limits for `adaptive` to keep, by which `attainment` counts requests, too."""


def accepted(rates: Sequence[float], rng: random.Random) -> Iterator[int]:
    """The number of accepted drafts of each step, endlessly."""
    while True:
        drawn = rng.random()
        yield sum([drawn < rate for rate in rates])


DECODE_SECONDS = 0.05
"""Seconds per token of an answer that comes from a decode instance, for which the next
turn of a session waits."""


def _end_at_first_token(requests: Sequence[SimRequest]) -> None:
    for before, request in pairwise(requests):
        if request.think is not None:
            request.think += before.output_len * DECODE_SECONDS
    for request in requests:
        request.output_len = 1


def requests_of(scenario: Scenario, seed: int) -> list[SimRequest]:
    """The requests of a seed, which are the same for all policies.

    Raises:
        UsageError: the workload cannot be made.
    """
    requests = scenario.workload.requests(random.Random(f"lengths {seed}"))
    if rates := scenario.limits.acceptance_rates:
        for request in requests:
            drafts = random.Random(seed * len(requests) + request.index)
            request.drafts = accepted(rates, drafts)
    if scenario.role == "prefill":
        _end_at_first_token(requests)
    return requests


def make_engine(scenario: Scenario, requests: Sequence[SimRequest]) -> Engine:
    """The ranks of the scenario, without requests.

    Raises:
        UsageError: the KV cache is too small.
    """
    return Engine(
        scenario.limits,
        max(request.prompt_len + request.output_len for request in requests),
        scenario.async_scheduling,
        any(request.hash_ids for request in requests),
        bool(scenario.short_first),
        scenario.role == "decode",
        scenario.latency_limits.ttft,
    )


MOST_STEPS = 1e8
"""The largest number of steps of a run, which takes hours."""


def _refuse_endless(scenario: Scenario, requests: Sequence[SimRequest]) -> None:
    limits, concurrency = scenario.limits, scenario.traffic.max_concurrency
    slots = limits.ranks * limits.max_num_seqs
    prompts = sum(request.prompt_len for request in requests)
    answers = sum(request.output_len for request in requests)
    steps = prompts / (limits.ranks * limits.max_num_batched_tokens)
    steps += answers / min(slots, concurrency or slots)
    if steps > MOST_STEPS:
        raise UsageError(
            f"--num-prompts {len(requests)}: {prompts + answers} tokens need some "
            f"{steps:.1g} steps, and a run takes at most {MOST_STEPS:.0g}; give fewer "
            "or shorter requests."
        )


def _device(cost: CostModel, rng: random.Random) -> Device:
    """A device whose step times are those of the cost model, with its noise."""

    def seconds(loads: Loads, now: float) -> float:
        return cost.step_seconds(loads)

    def noisy(loads: Loads, now: float) -> float:
        return cost.noisy(cost.step_seconds(loads), rng)

    return noisy if cost.noise > 0 else seconds


def simulate(
    scenario: Scenario,
    policy: str,
    seed: int = 0,
    *,
    controllers: Mapping[str, MakeController] = {},
    routers: Mapping[str, MakeBalancers] = LOAD_BALANCERS,
    device: Device | None = None,
    leave: Leave | None = None,
    rng: random.Random | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    on_done: Callable[[int], object] | None = None,
) -> Run:
    """Runs the scenario with a policy. The same arguments give the same run.

    Args:
        scenario: the scenario.
        policy: a text that `make_controller` takes.
        seed: seed of all random numbers.
        controllers: further policies by name, or others instead of a server's.
        routers: load balancers by name.
        device: gives the step times, instead of the scenario's cost.
        leave: takes out requests whose clients go away.
        rng: draws for routers and clients, instead of a generator for each.
        on_step: is called with the record of each step.
        on_done: is called with the number of requests that ended in a step.

    Raises:
        UsageError: the scenario cannot be run; the message names the option.
    """
    requests = requests_of(scenario, seed)
    _refuse_endless(scenario, requests)
    spec = PolicySpec.parse(policy)
    controller = None
    if scenario.role != "decode":
        in_flight = 1 + scenario.async_scheduling
        controller = make_controller(
            policy, in_flight, controllers, scenario.latency_limits
        )
    if scenario.short_first is None:
        scenario = replace(scenario, short_first=spec.name in SHORT_FIRST)
    engine = make_engine(scenario, requests)
    limits, frontend = scenario.limits, scenario.frontend
    backends = Backends(
        limits.ranks,
        rng or random.Random(f"routing {seed}"),
        frontend.api_servers,
        limits.max_num_seqs,
        limits.kv_blocks,
        engine.cached_tokens,
        engine.output_tokens,
    )
    served_by = load_balancer_of(
        scenario.load_balancer, spec.name in POLICIES, scenario.role == "decode"
    )
    rng = rng or random.Random(f"clients {seed}")
    cost = scenario.cost.with_drafts(len(limits.acceptance_rates))
    return Cluster(
        engine,
        controller,
        requests,
        Clients(requests, scenario.traffic, frontend, rng),
        Dispatcher(limits.ranks, routers[served_by](backends)),
        device or _device(cost, rng),
        async_scheduling=scenario.async_scheduling,
        launch=cost.launch,
        leave=leave,
        on_step=on_step,
        on_done=on_done,
    ).run()


def simulate_and_measure(
    scenario: Scenario, policy: str, seed: int = 0, **options: Any
) -> Metrics:
    """Runs the scenario, as by `simulate`, and keeps only its figures."""
    run = simulate(scenario, policy, seed, **options)
    return measure(run, scenario.latency_limits)
