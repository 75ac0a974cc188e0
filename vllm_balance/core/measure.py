# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Makes a rank's row after a step, from what was counted in its queues.

The gate of a real scheduler and the simulator's ranks both make their rows here, and
differ only in how they count. Pure Python: no torch, no vllm import; the clock is
given.
"""

from collections.abc import Container, Mapping
from typing import NamedTuple

from .pending import Pending, PendingAges
from .policies.rows import Row


class Queues(NamedTuple):
    """How many requests a rank has."""

    running: int
    """In the running queue."""
    decoding: int
    """Those of them whose prompt is complete."""
    waiting: int
    """In the waiting queues."""


_NOTHING = Pending({}, 0)


class RowMaker:
    """Makes the rows of one rank, and remembers what a row says about the last one.

    Once per step: `end_step`, then `row`, then `end_exchange` if the ranks waited for
    each other. A row that is sent before its step is computed tells the step before.
    """

    def __init__(self) -> None:
        self.is_sorted = True
        """Whether the pending requests have been put in order: the caller sets it, and
        a row with other pending requests than the last one clears it."""
        self.reset()

    def reset(self) -> None:
        """Begins a wave: the time since the last one counts for nobody."""
        self.forget_steps()
        self._pending = _NOTHING
        self._pending_tokens = 0
        self._pending_since = 0.0
        self._ages = PendingAges()

    def forget_steps(self) -> None:
        """Begins steps that follow no other: the next has no step time."""
        self._last_end: float | None = None
        self._step = 0, 0, 0
        """Of the last step: microseconds, prompt tokens, what these attend to."""
        self._decoding: list[str] = []

    @property
    def pending(self) -> Mapping[str, int]:
        """Prompt tokens to compute of the requests that the last row calls pending."""
        return self._pending.tokens

    def end_step(self, now: float, prefilled: int, attended: int) -> None:
        """Takes the time of a step.

        Args:
            now: seconds of any clock that does not go back.
            prefilled: prompt tokens that were scheduled last.
            attended: tokens that these attend to.
        """
        last, self._last_end = self._last_end, now
        seconds = 0.0 if last is None else now - last
        self._step = int(seconds * 1e6), prefilled, attended

    def end_exchange(self, now: float) -> None:
        """Begins the next step: what the ranks waited for each other is none of it."""
        self._last_end = now

    def count_ended(self, decoding: list[str], unfinished: Container[str]) -> int:
        """How many of those that decoded at the last row are finished.

        Args:
            decoding: names of the requests that decode now.
            unfinished: names of all requests that the rank has; the preempted are
                among them.
        """
        before, self._decoding = self._decoding, decoding
        return sum([name not in unfinished for name in before])

    def row(
        self,
        wave: int,
        step: int,
        now: float,
        queues: Queues,
        ended: int,
        pending: Pending,
        wish: int = 0,
    ) -> Row:
        """The state now, and the step that `end_step` has timed.

        Args:
            wave: number of the wave.
            step: number of the step in it.
            now: seconds of the clock.
            queues: how many requests there are.
            ended: as `count_ended`.
            pending: requests that could prefill in the next step; the same object as
                in the last row says that nothing has changed.
            wish: the newest wish for a policy.
        """
        if pending is not self._pending:
            if pending.tokens.keys() != self._pending.tokens.keys():
                self._pending_since = self._ages.oldest_since(pending.tokens, now)
                self.is_sorted = False
            self._pending = pending
            self._pending_tokens = sum(pending.tokens.values())
        age = now - self._pending_since if pending.tokens else 0.0
        running, decoding, waiting = queues
        step_time_us, prefilled, attended = self._step
        return Row(
            wave=wave,
            step=step,
            running=running,
            decoding=decoding,
            ended=ended,
            waiting=waiting,
            pending=len(pending.tokens),
            pending_tokens=self._pending_tokens,
            prefill_tokens=prefilled,
            step_time_us=step_time_us,
            pending_age_us=int(age * 1e6),
            pending_attended=pending.attended,
            prefill_attended=attended,
            wish=wish,
        )
