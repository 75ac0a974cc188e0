# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""One run in virtual time: clients, load balancer, ranks, policy and cost model."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .front_end.api_servers import Dispatcher
from .front_end.coordinator import Counts
from .policies import Controller
from .rank.engine import Engine
from .requests.arrivals import Clients, ClientTraffic, Frontend
from .requests.request import SimRequest
from .step_time.model import CostModel, Loads

SYNC_STEPS = 32
"""vLLM's ranks agree only every so many steps that a wave has ended."""


class StepRecord(NamedTuple):
    """What happened in one step, for traces and timelines."""

    end: float
    """Virtual seconds."""
    seconds: float
    loads: Loads
    held: tuple[bool, ...]
    counts: Counts
    """Of every rank after the step."""


class StepTotals(NamedTuple):
    """One step, summed over the ranks."""

    end: float
    seconds: float
    tokens: int
    """Output tokens."""
    decodes: int
    prefill: int
    max_prefill: int
    balance: float
    """Mean over maximum of the ranks' tokens; 1 if the step was empty."""


class Run(NamedTuple):
    """Everything that the metrics are computed from."""

    requests: Sequence[SimRequest]
    steps: Sequence[StepTotals]
    last_sent: float
    """Virtual seconds at which the last request was sent."""


def run(
    engine: Engine,
    controller: Controller | None,
    requests: Sequence[SimRequest],
    traffic: ClientTraffic,
    dispatcher: Dispatcher,
    cost: CostModel,
    rng: random.Random,
    *,
    frontend: Frontend | None = None,
    async_scheduling: bool = False,
    on_step: Callable[[StepRecord], None] | None = None,
    on_done: Callable[[int], object] | None = None,
) -> Run:
    """Serves the requests and returns what happened.

    Args:
        engine: the ranks, without requests.
        controller: decides from the rows of every step; None for no exchange.
        requests: in the order in which they are sent.
        traffic: when they are sent.
        dispatcher: where they are sent.
        cost: how long steps take.
        rng: source of chance of the clients and of the noise.
        frontend: the way from the clients to the ranks.
        async_scheduling: whether the engine schedules a step before the one before
            it has ended, as the engine was told.
        on_step: called after every step.
        on_done: called with the number of requests that ended in a step.
    """
    clients = Clients(requests, traffic, frontend or Frontend(), rng)

    def step_seconds(loads: Loads) -> float:
        seconds = cost.step_seconds(loads)
        return cost.noisy(seconds, rng) if cost.noise else seconds

    totals = _serve(
        *(engine, controller, clients, dispatcher, step_seconds, len(requests)),
        *(async_scheduling, on_step, on_done),
    )
    return Run(requests, totals, clients.last_sent)


def _serve(
    engine: Engine,
    controller: Controller | None,
    clients: Clients,
    dispatcher: Dispatcher,
    step_seconds: Callable[[Loads], float],
    left: int,
    async_scheduling: bool,
    on_step: Callable[[StepRecord], None] | None,
    on_done: Callable[[int], object] | None,
) -> list[StepTotals]:
    """Takes steps until so many requests, `left`, have ended."""
    tell = engine.backlogs if dispatcher.by_tokens else engine.counts
    in_flight: deque[Loads] = deque()
    totals: list[StepTotals] = []
    now = 0.0
    wave = step = 0
    routed: list[tuple[int, SimRequest]] = []
    while left:
        if step == 0 and not routed and not engine.has_work():
            now = max(now, clients.next_arrival)
            dispatcher.wake(now)
        for rank, request in (*routed, *_route(clients, dispatcher, now)):
            engine.add(rank, request)
        routed = []
        dispatcher.tell(now, wave, step, tell())

        in_flight.append(engine.schedule())
        if len(in_flight) > async_scheduling:
            loads = in_flight.popleft()
            seconds = step_seconds(loads)
            now += seconds
            routed = _route(clients, dispatcher, now)
            first, done = engine.update()
            totals.append(_sum_up(now, seconds, loads, len(first)))
            if on_step is not None:
                counts = tuple(engine.counts())
                on_step(StepRecord(now, seconds, loads, tuple(engine.held), counts))
        else:  # the first step of a wave: another is scheduled before it ends
            first, done = [], []
        _answer(first, done, now, clients, dispatcher)
        dispatcher.tell(now, wave, step, tell())
        if done:
            left -= len(done)
            if on_done is not None:
                on_done(len(done))

        step += 1
        if step % SYNC_STEPS == 0 and not engine.has_work():
            wave, step = wave + 1, 0
            in_flight.clear()  # nothing was left to compute
            engine.end_wave()
            if controller is not None:
                controller.reset()
        elif controller is not None:
            engine.decide(controller.decide(engine.exchange(wave, step, now)))
    return totals


def _route(
    clients: Clients, dispatcher: Dispatcher, now: float
) -> list[tuple[int, SimRequest]]:
    """What has reached the front-end until now, each with the rank chosen for it."""
    return dispatcher.route_all(now, clients.arrived(now))


def _answer(
    first: Sequence[SimRequest],
    done: Sequence[SimRequest],
    now: float,
    clients: Clients,
    dispatcher: Dispatcher,
) -> None:
    """Tells who must know of first tokens and of requests that have ended."""
    for request in first:
        request.first_token = now
        dispatcher.first_token(request)
    for request in sorted(done, key=lambda request: request.index):
        request.done = now
        dispatcher.finished(request)
        clients.finished(request, now)


def _sum_up(end: float, seconds: float, loads: Loads, first: int) -> StepTotals:
    decodes, prefill = sum(loads.decodes), sum(loads.prefill)
    max_prefill = max(loads.prefill) if prefill else 0
    if prefill:
        most = max(map(int.__add__, loads.prefill, loads.decodes))
    else:
        most = max(loads.decodes)
    ranks = len(loads.decodes)
    balance = (decodes + prefill) / (ranks * most) if most else 1.0
    return StepTotals(
        end, seconds, decodes + first, decodes, prefill, max_prefill, balance
    )
