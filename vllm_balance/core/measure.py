# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Makes a rank's row after a step, from what was counted in its queues.

The gate of a real scheduler and the simulator's ranks both make their rows here, and
differ only in how they count. The clock is given.
"""

from collections.abc import Container, Mapping, Sequence

from .pending import Pending, PendingAges
from .policies.rows import Row

_NOTHING = Pending({}, 0)


class RowMaker:
    """Makes the rows of one rank, and remembers what a row says about the last one.

    Once per step: `end_step`, then `row`, then `end_exchange` if the ranks waited for
    each other. A row that is sent before its step is computed tells the step before.
    """

    def __init__(self, ttft: float = 0.0) -> None:
        """Takes the limit of first tokens in seconds; 0 is none."""
        self._ttft = ttft
        self.held: Sequence[float] = ()
        """Seconds for which each prompt that is pending no more could have been
        computed, until the step that completed it began."""
        self.is_sorted = True
        """Whether the pending requests have been put in order: the caller sets it, and
        a row with other pending requests than the last one clears it."""
        self.reset()

    def reset(self) -> None:
        """Begins a wave."""
        self.forget_steps()
        self._pending = _NOTHING
        self._pending_tokens = 0
        self.pending_since = 0.0
        """When the oldest pending request became so, if there is one."""
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
        """Ends a step at `now`, in seconds of any clock that does not go back.

        `prefilled` tokens were scheduled last, which attend to `attended`.
        """
        last, self._last_end = self._last_end, now
        seconds = 0.0 if last is None else now - last
        self._step = int(seconds * 1e6), prefilled, attended

    def end_exchange(self, now: float) -> None:
        """Begins the next step: what the ranks waited for each other is none of it."""
        self._last_end = now

    def count_ended(self, decoding: list[str], unfinished: Container[str]) -> int:
        """How many of those that decoded at the last row are finished.

        The `unfinished` are all requests that the rank has, the preempted among them.
        """
        before, self._decoding = self._decoding, decoding
        return sum([name not in unfinished for name in before])

    def row(
        self,
        wave: int,
        step: int,
        now: float,
        queues: tuple[int, int, int],
        ended: int,
        pending: Pending,
        ticket: int = 0,
        clock: float | None = None,
    ) -> Row:
        """The state now, and the step that `end_step` has timed.

        The `queues` are the requests that run, those of them that decode, and those
        that wait.
        The same object for `pending` as in the last row says that nothing has changed.
        `clock` is now by the clock of arrival times; None if that is the same.
        """
        self.held = ()
        if pending is not self._pending:
            if pending.tokens.keys() != self._pending.tokens.keys():
                self.pending_since, left = self._ages.update(pending.tokens, now)
                began = now - self._step[0] / 1e6
                self.held = [max(0.0, began - since) for since in left]
                self.is_sorted = False
            self._pending = pending
            self._pending_tokens = sum(pending.tokens.values())
        age = now - self.pending_since if pending.tokens else 0.0
        in_time = 0.0
        if self._ttft and pending.arrivals:
            clock = now if clock is None else clock
            # Of those that came longer ago, the first token is late already.
            ages = [clock - arrival for arrival in pending.arrivals]
            in_time = max([each for each in ages if each < self._ttft], default=0.0)
        running, decoding, waiting = queues
        step_time_us, prefilled, attended = self._step
        queue = running, decoding, ended, waiting, len(pending.tokens)
        row = wave, step, *queue, self._pending_tokens, prefilled, step_time_us
        age_us, in_time_us = int(age * 1e6), int(max(0.0, in_time) * 1e6)
        return Row(*row, age_us, pending.attended, attended, ticket, in_time_us)
