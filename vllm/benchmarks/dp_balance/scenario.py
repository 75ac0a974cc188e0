# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A run described by plain values, so that it can be repeated, saved and compared."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .errors import UsageError
from .front_end.api_servers import Dispatcher
from .front_end.load_balancers import BY_TOKENS, load_balancer_of, make_load_balancers
from .loop import Run, StepRecord, run
from .metrics import Metrics, measure
from .policies import PolicySpec, make_controller
from .rank.engine import Engine
from .rank.limits import RankLimits
from .requests.arrivals import ClientTraffic, Frontend
from .requests.traces import CountTokens, TimedTrace, Trace, read_trace
from .requests.workload import (
    SimRequest,
    draw_requests,
    parse_lengths,
    share_prefixes,
)
from .step_time.model import CostModel


@dataclass(frozen=True)
class Workload:
    """Which requests are sent, in which order."""

    num_prompts: int | None = 2048
    """None for as many as the trace has."""
    input_len: str = "3500"
    output_len: str = "1500"
    trace: Path | None = None
    """Requests from a file instead of the two distributions."""
    timed_trace: TimedTrace = field(default_factory=TimedTrace)
    """How to read it."""
    prefix_share: float = 0.0
    """Share of each prompt that is the beginning of one of `num_prefixes` texts."""
    num_prefixes: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.prefix_share < 1:
            raise UsageError(
                f"--prefix-share {self.prefix_share}: it is a share, 0 to below 1."
            )
        if self.num_prefixes < 1:
            raise UsageError(f"--num-prefixes {self.num_prefixes}: give 1 or more.")

    def requests(
        self, rng: random.Random, count_tokens: CountTokens | None = None
    ) -> list[SimRequest]:
        """Draws the requests; equal generators give equal requests."""
        count = self.num_prompts
        if count is not None and count < 1:
            raise UsageError(f"--num-prompts {count}: give 1 or more.")
        if self.trace is not None:
            trace = read_trace(self.trace, count_tokens, self.timed_trace)
            return traced_requests(trace, count)
        if count is None:
            raise UsageError("--num-prompts: needed unless there is a trace.")
        requests = draw_requests(
            count,
            parse_lengths("--input-len", self.input_len),
            parse_lengths("--output-len", self.output_len),
            rng,
        )
        if self.prefix_share:
            share_prefixes(requests, self.prefix_share, self.num_prefixes, rng)
        return requests


def traced_requests(trace: Trace, count: int | None) -> list[SimRequest]:
    """The first requests of a trace; what has no times is repeated up to `count`."""
    rows = trace.rows
    if count is None or (trace.is_timed and count > len(rows)):
        count = len(rows)
    requests = []
    for index in range(count):
        row = rows[index % len(rows)]
        request = SimRequest(index, row.prompt_len, row.output_len)
        request.due = math.nan if row.time is None else row.time
        request.hash_ids, request.chunk_size = row.hash_ids, trace.chunk_size
        requests.append(request)
    return requests


@dataclass(frozen=True)
class Scenario:
    """Everything that a run depends on, but the policy and the seed."""

    limits: RankLimits
    cost: CostModel
    workload: Workload = field(default_factory=Workload)
    traffic: ClientTraffic = field(default_factory=ClientTraffic)
    frontend: Frontend = field(default_factory=Frontend)
    load_balancer: str = "0.23"
    skew: float = 0.5
    async_scheduling: bool = False


def make_engine(
    scenario: Scenario, requests: Sequence[SimRequest], ttft_budget: float | None
) -> Engine:
    """The ranks of the scenario, without requests.

    Raises:
        UsageError: the KV cache is too small.
    """
    return Engine(
        scenario.limits,
        max(request.prompt_len + request.output_len for request in requests),
        ttft_budget,
        scenario.async_scheduling,
        any(request.hash_ids for request in requests),
    )


def simulate(
    scenario: Scenario,
    policy: str,
    seed: int = 0,
    *,
    count_tokens: CountTokens | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    on_done: Callable[[int], object] | None = None,
) -> Run:
    """Runs the scenario with a policy. The same arguments give the same run.

    Raises:
        UsageError: the scenario cannot be run; the message names the option.
    """
    # Requests and clients draw from their own generators, so that all policies are
    # asked the same questions.
    requests = scenario.workload.requests(
        random.Random(f"lengths {seed}"), count_tokens
    )
    rng = random.Random(f"clients {seed}")
    ranks = scenario.limits.ranks
    load_balancer = load_balancer_of(scenario.load_balancer, policy)
    load_balancers = make_load_balancers(
        load_balancer,
        ranks,
        random.Random(f"routing {seed}"),
        scenario.skew,
        scenario.frontend.api_servers,
        scenario.limits.max_num_seqs,
    )
    controller = make_controller(policy)
    return run(
        make_engine(scenario, requests, PolicySpec.parse(policy).ttft_budget),
        controller,
        requests,
        scenario.traffic,
        Dispatcher(ranks, load_balancers, load_balancer == BY_TOKENS),
        scenario.cost,
        rng,
        frontend=scenario.frontend,
        async_scheduling=scenario.async_scheduling,
        on_step=on_step,
        on_done=on_done,
    )


def simulate_and_measure(scenario: Scenario, policy: str, seed: int = 0) -> Metrics:
    """Runs the scenario and keeps only its figures."""
    return measure(
        simulate(scenario, policy, seed),
        scenario.limits,
        scenario.traffic.max_concurrency,
        scenario.cost,
    )


def with_shared_prefill(scenario: Scenario) -> Scenario:
    """The perfect-sharing oracle.

    Every prompt token is spread over all ranks, so that no rank waits for another
    one's prefill.
    """
    return replace(scenario, cost=replace(scenario.cost, phi=1.0))
