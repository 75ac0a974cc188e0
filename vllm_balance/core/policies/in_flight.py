# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Which of the steps in flight the time between two exchanges is of."""

import math
from collections import deque
from collections.abc import Sequence

from .cost import FORGETTING_STEPS
from .rows import SECONDS, Snapshot

_PARTS = 2
"""Into which a step can be divided: a time is of one step, or of parts of two."""
_EXPLAINED = 0.6
"""By how much another position must lessen the squares of all errors: a prefill that is
taken for a decode, and the decode that is taken for it, make up to a half, as does a
pause; a hundred steps that vary by a tenth make 0.06."""


class StepsInFlight:
    """Finds the steps whose prompt tokens explain the times between exchanges best.

    With asynchronous scheduling, and with pipeline parallelism, several steps are in
    flight. Where a launch returns at once, an engine waits for the oldest of them, and
    that is the one a time is of. Where the launch computes the step itself, as on a
    CPU, it is the newest; where it waits in the midst of the step, a part of two.

    So ``t / (t + usual)`` is fitted by ``a + b * x``, b >= 0, with the times t, the
    squared mean of their roots, usual, and x the prompt tokens of the fullest rank,
    for each of several positions in the queue of steps; between two steps x is the mean
    of both. What is fitted is below 1, so that a pause counts as one step.
    Another position is taken once it lessens the sum of the squared errors by more than
    `_EXPLAINED`, and by a third. Times pass unseen while no step in flight has prompts,
    but for the first; each of the others forgets one in `FORGETTING_STEPS`.
    """

    def __init__(self, in_flight: int) -> None:
        """Takes times to be of the oldest of the steps in flight."""
        self._steps: deque[list[tuple[int, ...]]] = deque(maxlen=in_flight)
        """Of each rank the prompt tokens, and what they attend to; the newest last."""
        positions = 1 + _PARTS * (in_flight - 1)
        self._position = positions - 1
        """Back from the newest step, in parts of a step."""
        self._busy = False
        """Whether any of the steps in flight had prompts when a time was seen last."""
        self._times = [0.0] * 3
        """Sums of 1, y and y², where y is t / (t + usual)."""
        self._roots = 0.0
        """Sum of the roots of t."""
        self._prompts = [[0.0] * 3 for _ in range(positions)]
        """By position, sums of x, x² and x y."""

    @property
    def steps_back(self) -> float:
        """How many steps before the newest a time is of."""
        return self._position / _PARTS

    @property
    def spans(self) -> int:
        """How many times between exchanges a step takes a part of: 1 or 2."""
        return 1 + (self._position % _PARTS > 0)

    def reset(self) -> None:
        self._steps.clear()

    def timed(self, snapshot: Snapshot) -> Snapshot:
        """Takes the next snapshot, and gives it the prompt tokens of its step time."""
        steps = self._steps
        if steps.maxlen == 1:
            return snapshot
        columns = snapshot.prefill_tokens, snapshot.prefill_attended
        steps.append([*zip(*columns, strict=True)])
        time = max(snapshot.step_time_us)
        if time and len(steps) == steps.maxlen:
            self._observe(time * SECONDS, [max(step)[0] for step in reversed(steps)])
        # In the first steps of a wave there are fewer.
        position = min(self._position, _PARTS * (len(steps) - 1))
        back, part = divmod(position, _PARTS)
        ranks = steps[-1 - back]
        if part:
            # The fullest with the fullest, as each step is as long as its fullest rank.
            pairs = zip(sorted(ranks), sorted(steps[-2 - back]), strict=True)
            ranks = [((n + m) // 2, (a + b) // 2) for (n, a), (m, b) in pairs]
        tokens, attended = zip(*ranks, strict=True)
        return snapshot._replace(prefill_tokens=tokens, prefill_attended=attended)

    def _observe(self, seconds: float, tokens: Sequence[int]) -> None:
        """Learns from a time and the fullest rank of each step, the newest first."""
        before, self._busy = self._busy, any(tokens)
        if not before and not self._busy:
            return
        keep = 1 - 1 / FORGETTING_STEPS
        self._roots = keep * self._roots + math.sqrt(seconds)
        number = keep * self._times[0] + 1
        usual = self._roots / number
        y = seconds / (seconds + usual * usual)
        self._times = [number, keep * self._times[1] + y, keep * self._times[2] + y * y]
        for position, sums in enumerate(self._prompts):
            back, part = divmod(position, _PARTS)
            x = (tokens[back] + tokens[back + part]) / 2
            for i, factor in enumerate((1.0, x, y)):
                sums[i] = keep * sums[i] + x * factor
        explained = [*map(self._explained, self._prompts)]
        best, present = max(explained), explained[self._position]
        number, time, squares = self._times
        left = squares - time * time / number - present
        if best - present > max(_EXPLAINED, left / 3):
            self._position = explained.index(best)

    def _explained(self, sums: Sequence[float]) -> float:
        """By how much prompts at a position lessen the squares of all errors."""
        number, time, _ = self._times
        tokens, squares, product = sums
        together = product - tokens * time / number
        spread = squares - tokens * tokens / number
        return together * together / spread if together > 0 < spread else 0.0
