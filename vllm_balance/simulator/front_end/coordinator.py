# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""When the front-ends learn how many requests each rank has.

Models `DPCoordinatorProc` of vLLM 0.23 (0.33 is the same for MoE models): the ranks
tell their counts before and after a step, if these have changed; the coordinator
publishes 100 ms after the last time at the earliest, and only once nothing has come in
for a while. Messages are taken to need no time.
"""

import math
from typing import NamedTuple

from ..rank.counts import Counts, RankCounts

INTERVAL_SECONDS = 0.1
"""Between two publications of counts that change (`min_stats_update_interval_ms`)."""
IDLE_SECONDS = 5.0
"""Between two publications of counts that do not change."""
QUIET_SECONDS = 0.05
"""Without a message, before the counts of the step in progress are published."""


class Publication(NamedTuple):
    """What the front-ends receive."""

    time: float
    """Virtual seconds."""
    counts: Counts


class Coordinator:
    """Takes the ranks' counts and says when the front-ends get which of them."""

    def __init__(self, ranks: int) -> None:
        self._counts = [RankCounts(0, 0)] * ranks
        self._changed = False
        self._step_counts: Counts | None = None
        """As they were before the first message of the newest step, if something
        had changed until then that was not published."""
        self._newest = (-1, -1)
        """Wave and step of the newest message."""
        self._published = -math.inf
        self._due = 0.0

    def tell(self, now: float, wave: int, step: int, counts: Counts) -> None:
        """The ranks report after or before a step; only changes are messages.

        No publication is due before `now`; of the wave `step` steps have ended.
        """
        if counts == self._counts:
            return
        told = False
        for rank, new in enumerate(counts):
            old = self._counts[rank]
            if new is old or new[:2] == old[:2]:
                continue
            if (wave, step) > self._newest:
                if self._changed:
                    self._step_counts = tuple(self._counts)
                self._newest = (wave, step)
            self._counts[rank] = new
            self._changed = told = True
        if told:
            self._wait(now)

    def wake(self, now: float) -> None:
        """A front-end has sent a request to ranks that pause.

        It starts a wave, and the silence that the coordinator waits for starts anew.
        """
        self._wait(now)

    def published(self, until: float) -> list[Publication]:
        """What is published before `until`, in order."""
        found = []
        while self._due < until:
            if self._step_counts is not None:
                counts, self._step_counts = self._step_counts, None
            else:
                counts, self._changed = tuple(self._counts), False
            found.append(Publication(self._due, counts))
            self._published = self._due
            self._wait(self._due)
        return found

    def _wait(self, now: float) -> None:
        interval = INTERVAL_SECONDS if self._changed else IDLE_SECONDS
        quiet = QUIET_SECONDS if self._step_counts is None else 0.0
        self._due = max(now + quiet, self._published + interval)
