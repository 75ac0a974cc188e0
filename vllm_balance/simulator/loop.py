# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""One run in virtual time: clients, load balancer, ranks, policy and cost model."""

from collections import deque
from collections.abc import Callable, Sequence
from operator import add
from typing import NamedTuple

from .front_end.api_servers import Dispatcher
from .policies import Controller
from .rank.counts import Counts
from .rank.engine import Engine
from .requests.arrivals import Clients
from .requests.request import SimRequest
from .step_time.model import Loads

SYNC_STEPS = 32
"""Every so many steps vLLM's ranks agree whether a wave has ended; a single rank does
in every step."""


Device = Callable[[Loads, float], float]
"""The seconds of a step, from its loads and the virtual time at which it begins."""

Leave = Callable[[Engine, float], Sequence[SimRequest]]
"""Takes the requests of clients that go away before a step out of the ranks, by the
step's virtual time, and returns them."""


class StepRecord(NamedTuple):
    """The record of one step, for traces and timelines."""

    end: float
    """Virtual seconds."""
    seconds: float
    loads: Loads
    held: tuple[bool, ...]
    counts: Counts
    """The counts of every rank after the step."""


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
    """Requests that a closed loop sends at once; 0 for an open loop."""


class Cluster:
    """Clients, front-ends and ranks, in virtual time."""

    def __init__(
        self,
        engine: Engine,
        controller: Controller | None,
        requests: Sequence[SimRequest],
        clients: Clients,
        dispatcher: Dispatcher,
        device: Device,
        *,
        async_scheduling: bool = False,
        launch: float = 0.0,
        leave: Leave | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
        on_done: Callable[[int], object] | None = None,
    ) -> None:
        """Sends nothing yet.

        `async_scheduling` must be that of the engine; `launch` is `CostModel.launch`.
        Without a controller no rows are exchanged. `on_done` is called with the number
        of requests that ended in a step.
        """
        self._engine, self._controller = engine, controller
        self._requests, self._clients, self._dispatcher = requests, clients, dispatcher
        self._device, self._async, self._leave = device, async_scheduling, leave
        self._launch = launch if async_scheduling else 0.0
        self._on_step, self._on_done = on_step, on_done
        self._in_flight: deque[tuple[Loads, tuple[float, float] | None]] = deque()
        """The loads of the scheduled steps that have not ended; if launches block, with
        their seconds and their ends."""
        self._end = 0.0
        """The end of the step that was launched last, if launches block."""
        self._totals: list[StepTotals] = []
        self._now, self._wave, self._step = 0.0, 0, 0
        self._sync_steps = SYNC_STEPS if len(engine.counts()) > 1 else 1
        self._routed: list[tuple[int, SimRequest]] = []
        """Requests that arrived during the step, each with its rank."""
        self._gone: list[SimRequest] = []
        """Requests whose clients have gone since the last step ended."""

    def run(self) -> Run:
        """Serves the requests, which are sent in their order."""
        remaining = len(self._requests)
        # These need each step, so that calm steps cannot be taken at once.
        per_step = self._leave, self._on_step, self._launch, self._dispatcher.is_dealt
        while remaining:
            if not (self._routed or any(per_step)):
                self._pass_calm()
            self._begin_step()
            # Not in the first step of a wave: another is scheduled before it ends.
            if len(self._in_flight) > self._async:
                remaining -= self._end_step()
            self._agree()
        clients = self._clients
        return Run(self._requests, self._totals, clients.last_sent, clients.first_turn)

    def _pass_calm(self) -> None:
        """Takes the next steps at once, as long as they do nothing but decode."""
        engine, controller, in_flight = self._engine, self._controller, self._in_flight
        calm = engine.calm_steps()
        if calm <= 0 or len(in_flight) != self._async or not engine.has_work():
            return
        arrival = self._clients.next_arrival
        none, decodes, context, *_ = loads = engine.skip(0)
        _, _, tokens, count, _, balance = _sum_up(0.0, 0.0, loads, 0)
        now, first, last = self._now, self._step, None
        while calm > 0 and arrival > now:
            in_flight.append((Loads(none, decodes, context), None))
            seconds = self._device(in_flight.popleft()[0], now)
            now += seconds
            self._totals.append(StepTotals(now, seconds, tokens, count, 0, balance))
            context = [*map(add, context, decodes)]
            self._step, calm = self._step + 1, calm - 1
            if controller is not None:
                rows = engine.exchange(self._wave, self._step, now)
                if (decision := controller.decide(rows)) != last:
                    engine.decide(decision)
                    last, calm = decision, min(calm, engine.calm_steps())
        self._now = now
        engine.skip(self._step - first)

    def _begin_step(self) -> None:
        """Adds the arrived requests to their ranks, and schedules a step."""
        engine, clients, dispatcher = self._engine, self._clients, self._dispatcher
        if self._step == 0 and not self._routed and not engine.has_work():
            self._now = max(self._now, clients.next_arrival)
            dispatcher.coordinator.wake(self._now)
        arrived = dispatcher.route(clients.arrived(self._now))
        if self._routed or arrived:
            for rank, request in (*self._routed, *arrived):
                engine.add(rank, request)
            self._routed = []
            self._tell_coordinator()
        if self._leave is not None:
            self._gone += self._leave(engine, self._now)
        loads = engine.schedule()
        self._in_flight.append((loads, self._launched(loads) if self._launch else None))

    def _launched(self, loads: Loads) -> tuple[float, float]:
        """Waits for a blocking launch; returns the step's seconds and its end."""
        seconds = self._device(loads, self._now)
        self._end = max(self._now, self._end) + seconds
        self._now = max(self._now, self._end - (1 - self._launch) * seconds)
        return seconds, self._end

    def _end_step(self) -> int:
        """Ends the oldest step, and notifies dispatcher and clients.

        Returns:
            the number of requests that ended.
        """
        dispatcher, clients = self._dispatcher, self._clients
        loads, launched = self._in_flight.popleft()
        if launched is None:
            seconds = self._device(loads, self._now)
            now = self._now + seconds
        else:
            seconds, end = launched
            now = max(self._now, end)
        self._now = now
        self._routed = dispatcher.route(clients.arrived(now))
        first, done, wasted = self._engine.update()
        if self._gone:
            done, self._gone = [*done, *self._gone], []
        self._totals.append(_sum_up(now, seconds, loads, len(first) - wasted))
        if self._on_step is not None:
            held, counts = tuple(self._engine.held), tuple(self._engine.counts())
            self._on_step(StepRecord(now, seconds, loads, held, counts))
        if self._on_done is not None:
            self._on_done(len(done))
        for request in first:
            request.first_token = now
            dispatcher.first_token(request)
        for request in sorted(done, key=lambda request: request.index):
            request.done = now
            dispatcher.finished(request)
            clients.finished(request, now)
        return len(done)

    def _agree(self) -> None:
        """Reports counts, and decides on the next step, or ends the wave."""
        engine, controller = self._engine, self._controller
        self._tell_coordinator()
        self._step += 1
        if self._step % self._sync_steps == 0 and not engine.has_work():
            self._wave, self._step = self._wave + 1, 0
            self._in_flight.clear()  # nothing was left to compute
            engine.end_wave()
            if controller is not None:
                controller.reset()
        elif controller is not None:
            rows = engine.exchange(self._wave, self._step, self._now)
            engine.decide(controller.decide(rows))

    def _tell_coordinator(self) -> None:
        coordinator = self._dispatcher.coordinator
        coordinator.tell(self._now, self._wave, self._step, self._engine.counts())


def _sum_up(end: float, seconds: float, loads: Loads, extra: int) -> StepTotals:
    """The totals of a step with `extra` output tokens beside its decodes."""
    decodes, prefill = sum(loads.decodes), sum(loads.prefill)
    if prefill:
        maximum = max(map(int.__add__, loads.prefill, loads.decodes))
    else:
        maximum = max(loads.decodes)
    ranks = len(loads.decodes)
    balance = (decodes + prefill) / (ranks * maximum) if maximum else 1.0
    return StepTotals(end, seconds, decodes + extra, decodes, prefill, balance)
