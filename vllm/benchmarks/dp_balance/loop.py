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
from .rank.scheduler import NOTHING
from .requests.arrivals import Clients, ClientTraffic, Frontend
from .requests.request import SimRequest
from .step_time.model import CostModel, Loads

SYNC_STEPS = 32
"""Steps between two in which vLLM's ranks agree whether a wave has ended."""


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
    balance: float
    """Mean over maximum of the ranks' tokens; 1 if the step was empty."""


class Run(NamedTuple):
    """Everything that the metrics are computed from."""

    requests: Sequence[SimRequest]
    steps: Sequence[StepTotals]
    last_sent: float
    """Virtual seconds at which the last request was sent."""
    first_turn: int
    """Requests that a closed loop sends at once, if there are; 0 of an open loop."""


def run(
    engine: Engine,
    controller: Controller | None,
    requests: Sequence[SimRequest],
    traffic: ClientTraffic,
    dispatcher: Dispatcher,
    cost: CostModel,
    rng: random.Random,
    *,
    frontend: Frontend,
    async_scheduling: bool = False,
    on_step: Callable[[StepRecord], None] | None = None,
    on_done: Callable[[int], object] | None = None,
) -> Run:
    """Serves the requests, which are sent in their order, and returns what happened.

    The engine was told of `async_scheduling`, too. Without a controller nothing is
    exchanged. `on_done` is called with the number of requests that ended in a step.
    """
    clients = Clients(requests, traffic, frontend, rng)
    left = len(requests)
    tell: Callable[[], Counts] = getattr(engine, dispatcher.told)
    in_flight: deque[Loads] = deque()
    totals: list[StepTotals] = []
    now, wave, step = 0.0, 0, 0
    routed: list[tuple[int, SimRequest]] = []
    while left:
        if step == 0 and not routed and not engine.has_work():
            now = max(now, clients.next_arrival)
            dispatcher.coordinator.wake(now)
        for rank, request in (*routed, *dispatcher.route(clients.arrived(now))):
            engine.add(rank, request)
        routed = []
        dispatcher.coordinator.tell(now, wave, step, tell())

        in_flight.append(engine.schedule())
        first, done, wasted = NOTHING
        # Not in the first step of a wave: another is scheduled before it ends.
        if len(in_flight) > async_scheduling:
            loads = in_flight.popleft()
            seconds = cost.step_seconds(loads)
            seconds = cost.noisy(seconds, rng) if cost.noise else seconds
            now += seconds
            routed = dispatcher.route(clients.arrived(now))
            first, done, wasted = engine.update()
            totals.append(_sum_up(now, seconds, loads, len(first) - wasted))
            if on_step is not None:
                held, counts = tuple(engine.held), tuple(engine.counts())
                on_step(StepRecord(now, seconds, loads, held, counts))
        _answer(first, done, now, clients, dispatcher, on_done)
        dispatcher.coordinator.tell(now, wave, step, tell())
        left -= len(done)

        step += 1
        if step % SYNC_STEPS == 0 and not engine.has_work():
            wave, step = wave + 1, 0
            in_flight.clear()  # nothing was left to compute
            engine.end_wave()
            if controller is not None:
                controller.reset()
        elif controller is not None:
            engine.decide(controller.decide(engine.exchange(wave, step, now)))
    return Run(requests, totals, clients.last_sent, clients.first_turn)


def _answer(
    first: Sequence[SimRequest],
    done: Sequence[SimRequest],
    now: float,
    clients: Clients,
    dispatcher: Dispatcher,
    on_done: Callable[[int], object] | None,
) -> None:
    """Tells who must know of first tokens and of requests that have ended."""
    if on_done is not None:
        on_done(len(done))
    for request in first:
        request.first_token = now
        dispatcher.first_token(request)
    dispatcher.step_ended()
    for request in sorted(done, key=lambda request: request.index):
        request.done = now
        dispatcher.finished(request)
        clients.finished(request, now)


def _sum_up(end: float, seconds: float, loads: Loads, more: int) -> StepTotals:
    """The totals of a step that had so many output tokens `more` than decodes."""
    decodes, prefill = sum(loads.decodes), sum(loads.prefill)
    if prefill:
        most = max(map(int.__add__, loads.prefill, loads.decodes))
    else:
        most = max(loads.decodes)
    ranks = len(loads.decodes)
    balance = (decodes + prefill) / (ranks * most) if most else 1.0
    return StepTotals(end, seconds, decodes + more, decodes, prefill, balance)
