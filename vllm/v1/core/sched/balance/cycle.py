# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How long it pays to collect prefills before a release: the renewal cycle."""

import math


class Traffic:
    """Rate and size of admissions, over an exponential window of seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._tokens = 0.0
        self._seconds = 0.0
        self._size: float | None = None

    def observe(
        self, seconds: float, prefilled: int, pending: int, pending_tokens: int
    ) -> None:
        """Adds one step.

        Args:
            seconds: duration of the step.
            prefilled: prompt tokens that all ranks scheduled in it.
            pending: requests that are pending on all ranks after it.
            pending_tokens: prompt tokens that those have left.
        """
        keep = math.exp(-seconds / self._window)
        self._tokens = self._tokens * keep + prefilled
        self._seconds = self._seconds * keep + seconds
        if pending:
            size = pending_tokens / pending
            self._size = size if self._size is None else 0.98 * self._size + 0.02 * size

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


def fuller_release(cycle: float, waste: float, fullness: float) -> tuple[float, float]:
    """The optimal cycle and its waste where releases collect many requests.

    A release of a few requests wastes what one request on one rank does. With k > 1
    requests per rank the fullest rank has several more than the mean one, and they
    take several steps: k times the waste fits simulations best (k / 3 and k / 2 do
    worse), and less while slots are free, where longer waits buy less. The optimal
    cycle grows with the root of the waste.

    Args:
        cycle: the optimal one, seconds, if one request is wasted.
        waste: seconds per release of one request.
        fullness: k, requests that each rank collects in that cycle on average, times
            the share of the slots in use.
    """
    factor = max(1.0, fullness)
    return cycle * math.sqrt(factor), waste * factor


def shortened_cycle(optimal: float, waste: float, tolerance: float) -> float:
    """The shortest cycle that loses at most `tolerance` more than the optimal one.

    The loss is flat around its minimum: a cycle of x times the optimal one T loses
    ``(W / T) (x + 1/x - 2)`` seconds per second more. Shorter cycles mean shorter
    waits, so the smaller x at which that equals `tolerance` is taken.

    Args:
        optimal: T, seconds.
        waste: W, seconds per release.
        tolerance: lost seconds per second.
    """
    if waste <= 0 or math.isinf(optimal):
        return optimal
    z = 2 + tolerance * optimal / waste
    # 2 / (z + root) is the smaller solution of x + 1/x = z without cancellation.
    return optimal * 2 / (z + math.sqrt(z * z - 4))
