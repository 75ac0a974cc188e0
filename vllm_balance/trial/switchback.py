# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The stretches: one load that never stops, policies in random order within blocks.

Large services compare so where users cannot be divided (a *switchback*): drift over
minutes meets all policies alike, and none has the first or the last requests of a
server. The beginning of a stretch is left out: in a closed loop half of the mean
latency, after which work per second is that of a long run but for two per cent, and
for seven with answers of ten tokens; else one mean latency, so that the requests of the
policy before have ended.
"""

import asyncio
import itertools
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import replace
from typing import NamedTuple, Protocol

from ..errors import UsageError
from ..server_api import Endpoint, Scrape
from .figures import Answer, Measured, Stretch, mean_latency
from .load import Load, Traffic
from .verdict import LEAST_BLOCKS, MOST_BLOCKS, Interval, level

WARM_UP_S, SHORTEST_S, ANEW_S = 10.0, 10.0, 60.0
"""Seconds of a stretch: in the warm-up, at least, and on a server that is started."""
OPEN_S = 60.0
"""Seconds of a stretch of an open loop at least: a block repeats its requests for each
policy, and in a shorter stretch that makes of one burst a long one."""
TOO_SHORT = 1.5
"""A stretch is too short if it should be longer by more than this factor."""
LOOK_S = 0.5


class Site(Protocol):
    """Where servers come from."""

    is_switched: bool
    """Whether one server takes all policies."""

    def serve(self, policy: str) -> AbstractContextManager[Endpoint]:
        """A server that takes the load."""
        ...


class Times(NamedTuple):
    """Limits of a trial's duration, and the length of a stretch, in seconds."""

    min_seconds: float
    max_seconds: float
    stretch: float | None = None
    """None for `stretch_for` the mean latency."""


Show = Callable[[str, float], None]
"""Takes a text, and the share of the time that has passed."""


class Switchback:
    """The stretches of a trial, and their measurements, also if it is interrupted."""

    def __init__(
        self, site: Site, load: Load, policies: Sequence[str], times: Times
    ) -> None:
        """Runs nothing yet.

        Args:
            site: gives the servers.
            load: the load to send.
            policies: their names; the others are compared with the first.
            times: limits of the duration.
        """
        self.policies = policies
        self.measured = Measured()
        """The measurements at the last look."""
        self.scrapes: dict[str, Scrape] = {}
        """By policy the metrics at the end of its last stretch."""
        self.block_s = 0.0
        self.begin = self.end = time.perf_counter()
        self._site, self._load, self._times = site, load, times
        self._random = random.Random(load.args.seed)
        self._answers: list[Answer] = []
        self._ticks: dict[int, float] = defaultdict(float)
        self._stretches: list[Stretch] = []
        self._max_blocks = MOST_BLOCKS
        self._judged_blocks = 0
        self._before: str | None = None
        self._traffic: Traffic
        self._endpoint: Endpoint

    @property
    def judged(self) -> Measured:
        """The measurements of the complete blocks."""
        return self.measured.whole_blocks(len(self.policies))

    def intervals(self) -> dict[str, Interval]:
        """By policy the interval of its latency over the first policy's."""
        judged, (base, *others) = self.judged, self.policies
        alpha = level(judged.blocks, self._max_blocks)
        return {policy: judged.ratio(policy, base, alpha=alpha) for policy in others}

    async def run(self, show: Show) -> None:
        """Runs until all policies differ from the first, or the time is over.

        Raises:
            UsageError: a request failed, or a server ended or has another policy.
        """
        self.begin = time.perf_counter()
        async with AsyncExitStack() as stack:
            length = self._times.stretch or ANEW_S
            if self._site.is_switched:
                await self._open(stack)
                length = await self._warm_up(show)
            block, is_known = 0, False
            while block < self._max_blocks and not is_known:
                begin = time.perf_counter()
                is_known = await self._block(block, length, show)
                if block == 0 and (longer := self._longer(length)) > length:
                    length = longer
                    self._stretches.clear()
                    continue
                if block == 0:
                    self._plan(time.perf_counter() - begin, length)
                block += 1
        self._look(show)

    async def _block(self, block: int, length: float, show: Show) -> bool:
        """Serves each policy once; returns early if all differ from the first."""
        for policy in self._random.sample(self.policies, len(self.policies)):
            await self._stretch(block, policy, length)
            self._look(show)
            if self._is_known():
                return True
        return False

    async def _open(self, stack: AsyncExitStack, policy: str | None = None) -> None:
        """Opens a server, and sends the load to it until the stack is closed."""
        served = served_name(policy or self.policies[0])
        self._endpoint = stack.enter_context(self._site.serve(served))
        sending = self._load.sending(self._endpoint)
        ready = await stack.enter_async_context(sending)
        self._traffic = await stack.enter_async_context(Traffic(ready))
        self._traffic.answers, self._traffic.ticks = self._answers, self._ticks
        self.measured = replace(
            self.measured, clients=ready.clients, limits=ready.limits
        )

    async def _warm_up(self, show: Show) -> float:
        """Serves each policy once, to learn step times; returns a stretch's seconds."""
        policies, given_length = self.policies, self._times.stretch
        for number in itertools.count():
            policy = policies[number % len(policies)]
            show(f"warming up with {policy}", 0.0)
            begin = await self._take(policy)
            self._traffic.begin(-1 - number)
            await self._wait(begin + (given_length or WARM_UP_S))
            enough = len(self._answers) > 2 * (self.measured.clients or 0)
            if number + 1 >= len(policies) and enough:
                break
        # Without the first half of the answers: their requests came at once.
        latency = mean_latency(self._answers[len(self._answers) // 2 :])
        length = given_length or stretch_for(latency, self.measured.clients)
        self._leave_out(latency, length)
        return length

    def _longer(self, length: float) -> float:
        """The length of a stretch, more if answers take longer than in the warm-up.

        It is not above what the time allows.
        """
        if self._times.stretch or not self._site.is_switched:
            return length
        # A queue may still grow.
        latency = mean_latency(self._answers[len(self._answers) // 2 :])
        needed = stretch_for(latency, self.measured.clients)
        most = self._remaining / (LEAST_BLOCKS * len(self.policies))
        return longer if (longer := min(needed, most)) > TOO_SHORT * length else length

    @property
    def _remaining(self) -> float:
        return self._times.max_seconds - (time.perf_counter() - self.begin)

    def _plan(self, block_s: float, length: float) -> None:
        """Sets the largest number of blocks, on which the level of a look depends."""
        remaining = self._remaining
        blocks = 1 + max(0, round(remaining / block_s))
        self._max_blocks = max(LEAST_BLOCKS, min(blocks, MOST_BLOCKS))
        self.block_s = block_s
        # Answers may take longer than in the warm-up.
        self._leave_out(mean_latency(self._answers), length)

    def _leave_out(self, latency: float, length: float) -> None:
        latency *= 0.5 if self.measured.clients and self._site.is_switched else 1.0
        self.measured = replace(self.measured, washout=min(latency, length / 2))

    async def _stretch(self, block: int, policy: str, length: float) -> None:
        async with AsyncExitStack() as stack:
            if not self._site.is_switched:
                await self._open(stack, policy)
            before, begin = self._before, await self._take(policy)
            self._traffic.begin(block)
            await self._wait(begin + length)
            end = time.perf_counter()
            scrape = await asyncio.to_thread(
                self._endpoint.figures, served_name(policy)
            )
            self.scrapes[policy] = scrape
        self._stretches.append(Stretch(block, policy, before, begin, end))

    async def _take(self, policy: str) -> float:
        """Switches the server to a policy; returns the time at which it has it."""
        if self._site.is_switched:
            await asyncio.to_thread(self._endpoint.switch, served_name(policy))
            self._before = policy
        return time.perf_counter()

    async def _wait(self, until: float) -> None:
        """Waits until a time, and watches the server and the requests.

        Raises:
            UsageError: a request failed, or the server ended.
        """
        while (remaining := until - time.perf_counter()) > 0:
            await asyncio.sleep(min(LOOK_S, remaining))
            self._endpoint.watch()
            if self._traffic.failure:
                raise UsageError(f"a request failed: {self._traffic.failure}.")

    def _look(self, show: Show) -> None:
        self.end = time.perf_counter()
        self.measured = replace(
            self.measured,
            answers=[*self._answers],
            ticks=self._ticks,
            waiting=[*self._traffic.under_way.values()],
            stretches=[*self._stretches],
        )
        parts = [f"{self.judged.blocks} blocks"]
        for policy, interval in self.intervals().items():
            if math.isfinite(interval.half):
                mean, low, high = interval.ratios
                parts.append(f"{policy} {mean:.2f} ({low:.2f} to {high:.2f})")
        show(", ".join(parts), (self.end - self.begin) / self._times.max_seconds)

    def _is_known(self) -> bool:
        """Whether all policies differ from the first, looked at once a block."""
        blocks = self.judged.blocks
        if blocks <= self._judged_blocks:
            return False
        self._judged_blocks = blocks
        if blocks < LEAST_BLOCKS or self.end - self.begin < self._times.min_seconds:
            return False
        return all(interval.differs for interval in self.intervals().values())


def stretch_for(latency: float, clients: int | None) -> float:
    """Seconds of a stretch for a mean latency, in a closed loop or an open one."""
    return max(SHORTEST_S, 3 * latency) if clients else max(OPEN_S, 6 * latency)


def names_of(policies: Sequence[str]) -> list[str]:
    """The policies; one that is given twice, to measure the noise, gets a number."""
    return [
        policy if policy not in policies[:index] else f"{policy}#{index + 1}"
        for index, policy in enumerate(policies)
    ]


def served_name(policy: str) -> str:
    """The policy's name without its number."""
    return policy.partition("#")[0]
