# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How long a rank's requests have waited, been pending, been held.

Pure Python; the clock is given.
"""

import math
from collections import deque
from collections.abc import Iterable, Set
from typing import Any


class PendingAges:
    """Remembers when each pending request was first seen pending.

    A request is pending once it could be admitted, not when it arrives: a time that
    counted from arrival would release everything at once wherever requests queue for
    a slot. A request that is no longer pending (it runs, or its place or its KV cache
    blocks are gone) is forgotten.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._pending: frozenset[str] | None = None

    def oldest(self, request_ids: frozenset[str], now: float) -> float:
        """Seconds since the first of these became pending; 0 without any.

        Args:
            request_ids: all that are pending now.
            now: seconds of any clock that does not go back.
        """
        since = self._since
        if request_ids is not self._pending:
            for request_id in [each for each in since if each not in request_ids]:
                del since[request_id]
            since.update(dict.fromkeys(request_ids.difference(since), now))
            self._pending = request_ids
        return now - next(iter(since.values()), now)  # they are in order of time


class Arrivals:
    """When each request arrived, by the clock of this process.

    A request carries the front-end's wall clock, which may be another host's. A time
    stamp is believed if it is possible: a request that is first seen after a step
    arrived in that step or in the one before it, for the engine takes in requests
    between steps; a quarter of a second more is allowed for what the front-end does
    before. One that says something else counts from the beginning of those two steps.
    """

    _FRONT_END_S = 0.25
    """Seconds that a front-end may take before the engine has the request."""

    def __init__(self) -> None:
        self._arrived: dict[str, float] = {}
        self._seen_at = deque([-math.inf, -math.inf], maxlen=2)

    def observe(self, requests: dict[str, Any], now: float, wall: float) -> list[str]:
        """Notes new requests, and returns their names.

        Args:
            requests: all that there are by name, the newest last.
            now: seconds of a clock that does not go back.
            wall: seconds of the clock of `Request.arrival_time`, if it is this host's.
        """
        earliest = self._seen_at[0]
        new = []
        for name in reversed(requests):
            if name in self._arrived:
                break
            arrived = requests[name].arrival_time + (now - wall)
            if not earliest - self._FRONT_END_S <= arrived <= now:
                arrived = now if math.isinf(earliest) else earliest
            self._arrived[name] = arrived
            new.append(name)
        self._seen_at.append(now)
        if len(self._arrived) > 2 * (len(requests) + 1):
            self._arrived = {name: self._arrived[name] for name in requests}
        return new

    def longest_wait(self, names: Iterable[str], now: float, less: float) -> float:
        """Seconds since the first of these requests arrived; 0 without any.

        Args:
            names: of the requests.
            now: seconds of the clock of `observe`.
            less: longer waits do not count, and waits of as long.
        """
        arrived = self._arrived
        times = [arrived.get(name, now) for name in names]
        first = min(times, default=now)
        if now - first >= less:
            first = min([time for time in times if now - time < less], default=now)
        return now - first


class Holds:
    """For how many steps each admissible request has been held.

    A step counts if the request was held in it and is pending after it, and was
    pending before it or arrived meanwhile. Steps in which the scheduler did not get to
    it, because it preempted others or was paused, neither count nor end the hold: that
    ends when some of its prompt is computed, or when it is gone.
    """

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._computed: dict[str, int] = {}
        self._pending: frozenset[str] = frozenset()
        self.held_one = False
        """Whether the last step counted for a request."""
        self.longest = 0
        """Steps of the longest hold of a request that is pending."""

    def end_step(
        self,
        requests: dict[str, Any],
        pending: frozenset[str],
        held: Set[str],
        new: Iterable[str],
        began: float,
    ) -> list[tuple[int, float]]:
        """Counts one step.

        Args:
            requests: all that there are, by name.
            pending: those that are pending after the step.
            held: those that were held in it.
            new: those that arrived in it.
            began: seconds of any clock that does not go back, when it began.

        Returns:
            Steps and seconds of the holds that had ended when the step began.
        """
        steps, computed = self._steps, self._computed
        for name, tokens in computed.items():
            if tokens and name in requests:  # a preemption loses them
                computed[name] = min(tokens, requests[name].num_computed_tokens)
        held_on = held & pending
        if pending is not self._pending:
            held_on &= self._pending.union(new)
        ended = [
            self._end(name, began)
            for name in [each for each in steps if each not in held_on]
            if name not in requests
            or requests[name].num_computed_tokens > computed[name]
        ]
        self.held_one = bool(held_on)
        for name in held_on:
            if name in steps:
                steps[name] += 1
            else:
                steps[name] = 1
                self._since[name] = began
                computed[name] = requests[name].num_computed_tokens
        self._pending = pending
        pending_holds = [steps[name] for name in pending if name in steps]
        self.longest = max(pending_holds, default=0)
        return ended

    def end_all(self, now: float) -> list[tuple[int, float]]:
        """Steps and seconds of all holds: the wave has ended."""
        self._pending, self.longest = frozenset(), 0
        return [self._end(name, now) for name in list(self._steps)]

    def _end(self, name: str, now: float) -> tuple[int, float]:
        del self._computed[name]
        return self._steps.pop(name), now - self._since.pop(name)
