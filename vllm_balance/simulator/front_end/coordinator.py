# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The times at which front-ends learn how many requests each rank has.

Models `DPCoordinatorProc` of vLLM 0.23 (0.33 is the same for MoE models): the ranks
report their counts before and after a step, if these have changed; the coordinator
publishes at the earliest 100 ms after the last publication, and only after a short time
without messages. Messages take no time here.
"""

import math
from typing import NamedTuple

from ..rank.counts import Counts, RankCounts

INTERVAL_SECONDS = 0.1
"""Interval of publications with changed counts (`min_stats_update_interval_ms`)."""
IDLE_SECONDS = 5.0
"""Interval of publications with unchanged counts."""
QUIET_SECONDS = 0.05
"""Time without messages before the counts of the step in progress are published."""


class Publication(NamedTuple):
    """The counts that the front-ends receive."""

    time: float
    """Virtual seconds."""
    counts: Counts


class Coordinator:
    """Takes the ranks' counts, and determines what is published when."""

    def __init__(self, ranks: int) -> None:
        self._counts = [RankCounts(0, 0)] * ranks
        self._changed = False
        self._step_counts: Counts | None = None
        """The counts before the first message of the newest step, if they had changes
        that were not published."""
        self._newest = (-1, -1)
        """Wave and step of the newest message."""
        self._published = -math.inf
        self._due = 0.0

    def tell(self, now: float, wave: int, step: int, counts: Counts) -> None:
        """Takes the ranks' reports after or before a step; only changes are messages.

        No publication is due before `now`; `step` steps of the wave have ended.
        """
        if counts == self._counts:
            return
        is_message = False
        for rank, new in enumerate(counts):
            old = self._counts[rank]
            if new is old or new[:2] == old[:2]:
                continue
            if (wave, step) > self._newest:
                if self._changed:
                    self._step_counts = tuple(self._counts)
                self._newest = (wave, step)
            self._counts[rank] = new
            self._changed = is_message = True
        if is_message:
            self._wait(now)

    def wake(self, now: float) -> None:
        """Takes the message of a front-end that sends a request to paused ranks.

        It starts a wave, and the time without messages starts anew.
        """
        self._wait(now)

    def published(self, until: float) -> list[Publication]:
        """The publications before `until`, in order."""
        publications = []
        while self._due < until:
            if self._step_counts is not None:
                counts, self._step_counts = self._step_counts, None
            else:
                counts, self._changed = tuple(self._counts), False
            publications.append(Publication(self._due, counts))
            self._published = self._due
            self._wait(self._due)
        return publications

    def _wait(self, now: float) -> None:
        interval = INTERVAL_SECONDS if self._changed else IDLE_SECONDS
        quiet = QUIET_SECONDS if self._step_counts is None else 0.0
        self._due = max(now + quiet, self._published + interval)
