"""What the demo sees of a server while it is busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from balance_tools.serving.server import Server

PERIOD_S = 0.1


@dataclass(frozen=True)
class Sample:
    """One look at /metrics; the mappings are from rank to value."""

    time_s: float
    running: dict[int, float]
    waiting: dict[int, float]
    held_steps: dict[int, float]
    """Steps so far in which the rank held back an admissible request."""


@dataclass(frozen=True)
class Run:
    """One policy's part of the demonstration."""

    policy: str
    bench: dict[str, Any]
    """What `vllm bench serve --save-result` wrote."""
    samples: tuple[Sample, ...]
    decisions: dict[int, float]
    held_steps: dict[int, float]

    @property
    def busy_samples(self) -> Sequence[Sample]:
        """The samples from the first to the last with a request in the engine."""
        busy = [
            index
            for index, sample in enumerate(self.samples)
            if any(sample.running.values()) or any(sample.waiting.values())
        ]
        return self.samples[busy[0] : busy[-1] + 1] if busy else self.samples


@contextmanager
def watch(server: Server) -> Iterator[list[Sample]]:
    """Collect samples in the background until the body ends."""
    samples: list[Sample] = []
    done = threading.Event()
    start = time.monotonic()

    def look() -> None:
        while not done.wait(PERIOD_S):
            values = server.metrics(
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
                "vllm:dp_balance_held_steps_total",
            )
            samples.append(Sample(time.monotonic() - start, *values))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
