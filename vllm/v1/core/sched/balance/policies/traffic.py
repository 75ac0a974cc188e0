# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How long it pays to collect prefills before a release: the renewal cycle."""

import math

from .step_cost import MEMORY


class Traffic:
    """Rate and size of admissions, over an exponential window of seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._tokens = 0.0
        self._seconds = 0.0
        self._size: float | None = None

    def observe(
        self, seconds: float, prefilled: float, pending: int, pending_tokens: float
    ) -> None:
        """Adds one step.

        Args:
            seconds: duration of the step.
            prefilled: prompt tokens that all ranks scheduled in it.
            pending: requests that are pending on all ranks after it.
            pending_tokens: prompt tokens that those have left.
        """
        keep = self._window / (self._window + seconds)
        self._tokens = self._tokens * keep + prefilled
        self._seconds = self._seconds * keep + seconds
        if pending:
            size = pending_tokens / pending
            before = size if self._size is None else self._size
            self._size = before + (size - before) / MEMORY

    @property
    def size(self) -> float:
        """Prompt tokens of a mean request; at least 1."""
        return max(1.0, self._size or 0.0)

    @property
    def rate(self) -> float:
        """Requests per second that the ranks prefill together."""
        return self._tokens / self._seconds / self.size if self._seconds else 0.0


def optimal_cycle(waste: float, requests: float, rate: float) -> float:
    """The cycle that loses least time to waste and to waiting together.

    With m admissible requests per second, n of N requests pending for T seconds cost
    the share n/N of the throughput, so a cycle of T seconds loses ``m T^2 / 2N``
    seconds to waiting and W to the waste of its release. The loss per second,
    ``W / T + m T / 2N``, is least at ``T = sqrt(2 W N / m)``: the economic order
    quantity of inventory theory.

    Args:
        waste: W, seconds that one release wastes.
        requests: N, requests that run or are pending.
        rate: m, requests per second.

    Returns:
        Seconds; infinity if nothing arrives.
    """
    return math.sqrt(2 * waste * requests / rate) if rate > 0 else math.inf
