# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Load balancers: which rank a request is sent to.

The two of vLLM's own front-end see counts that the coordinator publishes ten times a
second, and their own requests at once.
"""

import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

from .errors import UsageError

PUBLISH_SECONDS = 0.1
"""Interval of the coordinator's counts."""

Counts = Sequence[tuple[int, int]]
"""(waiting, running) of every rank."""


class LoadBalancer(Protocol):
    """Chooses ranks."""

    def choose(self) -> int:
        """The rank of the next request."""
        ...

    def finished(self, rank: int) -> None:
        """A request of this rank ended."""
        ...

    def publish(self, counts: Counts) -> None:
        """The coordinator's counts arrived."""
        ...


class Balancer023:
    """vLLM 0.23: the least of four times waiting plus running, lowest rank first."""

    def __init__(self, ranks: int) -> None:
        self._waiting = [0] * ranks
        self._running = [0] * ranks

    def publish(self, counts: Counts) -> None:
        """Forgets what was counted locally since the last time."""
        self._waiting = [waiting for waiting, _ in counts]
        self._running = [running for _, running in counts]

    def choose(self) -> int:
        """Counts the request as waiting until the next `publish`."""
        scores = [
            4 * waiting + running
            for waiting, running in zip(self._waiting, self._running, strict=True)
        ]
        rank = scores.index(min(scores))
        self._waiting[rank] += 1
        return rank

    def finished(self, rank: int) -> None:
        """Seen only when the coordinator publishes it."""


class Balancer030:
    """vLLM 0.30: the least of the greater of own requests in flight and published
    counts, scanned from a rank that moves on. (Its term for a nearly full KV cache is
    left out: published counts carry no usage here.)"""

    def __init__(self, ranks: int) -> None:
        self._load = [0] * ranks
        self._in_flight = [0] * ranks
        self._start = 0

    def publish(self, counts: Counts) -> None:
        """Forgets what was counted locally since the last time."""
        self._load = [waiting + running for waiting, running in counts]

    def choose(self) -> int:
        """Counts the request until the next `publish`, and as in flight."""
        ranks = len(self._load)
        scan = [(self._start + i) % ranks for i in range(ranks)]
        rank = min(scan, key=lambda i: max(self._in_flight[i], self._load[i]))
        self._load[rank] += 1
        self._in_flight[rank] += 1
        self._start = (self._start + 1) % ranks
        return rank

    def finished(self, rank: int) -> None:
        """Seen at once: the responses pass the same front-end."""
        self._in_flight[rank] -= 1


class BlindBalancer:
    """A router that does not look at the ranks; it draws each rank from a source."""

    def __init__(self, draw: Callable[[], int]) -> None:
        self.choose = draw

    def publish(self, counts: Counts) -> None:
        """Not looked at."""

    def finished(self, rank: int) -> None:
        """Not looked at."""


def _zipf(count: int, skew: float) -> list[float]:
    return list(accumulate((i + 1) ** -skew for i in range(count)))


def _round_robin(ranks: int, rng: random.Random, skew: float) -> LoadBalancer:
    turn = iter(range(10**12))
    return BlindBalancer(lambda: next(turn) % ranks)


def _random(ranks: int, rng: random.Random, skew: float) -> LoadBalancer:
    return BlindBalancer(lambda: rng.randrange(ranks))


def _skewed(ranks: int, rng: random.Random, skew: float) -> LoadBalancer:
    weights = _zipf(ranks, skew)
    return BlindBalancer(lambda: rng.choices(range(ranks), cum_weights=weights)[0])


SESSIONS_PER_RANK = 8


def _sticky(ranks: int, rng: random.Random, skew: float) -> LoadBalancer:
    homes = [rng.randrange(ranks) for _ in range(SESSIONS_PER_RANK * ranks)]
    weights = _zipf(len(homes), skew)
    return BlindBalancer(lambda: rng.choices(homes, cum_weights=weights)[0])


_MAKERS: dict[str, Callable[[int, random.Random, float], LoadBalancer]] = {
    "0.23": lambda ranks, rng, skew: Balancer023(ranks),
    "0.30": lambda ranks, rng, skew: Balancer030(ranks),
    "round-robin": _round_robin,
    "random": _random,
    "skewed": _skewed,
    "sticky": _sticky,
}

LOAD_BALANCERS = tuple(_MAKERS)


def make_load_balancer(
    name: str, ranks: int, rng: random.Random, skew: float = 0.5
) -> LoadBalancer:
    """The load balancer of that name.

    Args:
        name: one of `LOAD_BALANCERS`; "skewed" draws ranks, "sticky" sessions that
            stay on one rank, both with Zipf weights.
        ranks: how many ranks there are.
        rng: source of chance.
        skew: exponent of the Zipf weights; 0 is uniform.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in _MAKERS:
        raise UsageError(
            f"--load-balancer {name}: unknown; choose from {', '.join(_MAKERS)}."
        )
    if not 0 <= skew < float("inf"):
        raise UsageError(f"--skew {skew}: give a number of 0 or more.")
    return _MAKERS[name](ranks, rng, skew)
