# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How long a rank's requests have waited, been pending, been held.

Pure Python; the clock is given.
"""

import math
from collections import deque
from collections.abc import Iterable
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

    def oldest(self, request_ids: Iterable[str], now: float) -> float:
        """Seconds since the first of these became pending; 0 without any.

        Args:
            request_ids: all that are pending now.
            now: seconds of any clock that does not go back.
        """
        known = self._since
        self._since = {
            request_id: known.get(request_id, now) for request_id in request_ids
        }
        return now - min(self._since.values(), default=now)


class Arrivals:
    """When each request arrived, by the clock of this process.

    A request carries the front-end's wall clock, which may be another host's. A time
    stamp is believed if it is possible: a request that is first seen after a step
    arrived in that step or in the one before it, for the engine takes in requests
    between steps; a quarter of a second more is allowed for what the front-end does
    before. One that says something else counts from the begin of those two steps.
    """

    _FRONT_END_S = 0.25

    def __init__(self) -> None:
        self._arrived: dict[str, float] = {}
        self._seen_at = deque([-math.inf, -math.inf], maxlen=2)

    def observe(self, requests: dict[str, Any], now: float, wall: float) -> None:
        """Notes new requests.

        Args:
            requests: all that there are by name, the newest last.
            now: seconds of a clock that does not go back.
            wall: seconds of the clock of `Request.arrival_time`, if it is this host's.
        """
        earliest = self._seen_at[0]
        for name in reversed(requests):
            if name in self._arrived:
                break
            arrived = requests[name].arrival_time + (now - wall)
            if not earliest - self._FRONT_END_S <= arrived <= now:
                arrived = now if math.isinf(earliest) else earliest
            self._arrived[name] = arrived
        self._seen_at.append(now)
        if len(self._arrived) > 2 * len(requests) + 100:
            self._arrived = {name: self._arrived[name] for name in requests}

    def wait(self, name: str, now: float) -> float:
        """Seconds since that request arrived."""
        return now - self._arrived.get(name, now)


class Holds:
    """For how many steps each admissible request has been held.

    A step counts if the request was pending when it began and is still pending after
    it, and was held. Steps in which the scheduler did not get to it, because it
    preempted others or was paused, neither count nor end the hold: that ends when
    some of its prompt is computed, or when it is gone.
    """

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._computed: dict[str, int] = {}
        self._pending: set[str] = set()
        self.held_one = False
        """Whether the last step held a request that could have been admitted."""

    def end_step(
        self,
        requests: dict[str, Any],
        pending: Iterable[str],
        held: set[str],
        began: float,
    ) -> list[tuple[int, float]]:
        """Counts one step.

        Args:
            requests: all that there are, by name.
            pending: those that are pending after the step.
            held: those that were held in it.
            began: seconds of any clock that does not go back, at its begin.

        Returns:
            Steps and seconds of the holds that had ended when the step began.
        """
        ended = []
        for name in [name for name in self._steps if self._has_ended(requests, name)]:
            ended.append(self._end(name, began))
        now_pending = set(pending)
        self.held_one = not now_pending.isdisjoint(held)
        for name in now_pending & self._pending & held:
            self._steps[name] = self._steps.get(name, 0) + 1
            self._since.setdefault(name, began)
            self._computed[name] = requests[name].num_computed_tokens
        self._pending = now_pending
        return ended

    def _has_ended(self, requests: dict[str, Any], name: str) -> bool:
        request = requests.get(name)
        return request is None or request.num_computed_tokens > self._computed[name]

    def end_all(self, now: float) -> list[tuple[int, float]]:
        """Steps and seconds of all holds: the wave has ended."""
        self._pending = set()
        return [self._end(name, now) for name in list(self._steps)]

    def _end(self, name: str, now: float) -> tuple[int, float]:
        del self._computed[name]
        return self._steps.pop(name), now - self._since.pop(name)

    @property
    def longest(self) -> int:
        """Steps of the longest hold of a request that is pending."""
        return max((self._steps.get(name, 0) for name in self._pending), default=0)
