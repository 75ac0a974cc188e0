"""A scheduler for `--scheduler-cls` that writes down what it does."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

FOLDER = "HOSTILE_FOLDER"
"""The variable with the folder of what it writes."""


class Recorded(AsyncScheduler):
    """Counts what happens, and writes it with each report of the gate."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.counts: Counter[str] = Counter()
        self.rank = self.vllm_config.parallel_config.data_parallel_rank
        folder = Path(os.environ[FOLDER])
        self.record = folder / f"rank-{self.rank}.json"
        gate = self.balance_gate
        exchanged, take = gate.exchange_for, gate.take_stats

        def exchange_for(core: Any) -> None:
            held = gate.held
            exchanged(core)
            if core.engines_running:
                self.counts["held steps"] += held
                verb = "admit" if gate.decision.admit else "hold"
                self.counts[f"{verb} {gate.decision.reason}"] += 1

        def take_stats() -> Any:
            self.record.write_text(json.dumps(self.counts))
            return take()

        gate.exchange_for, gate.take_stats = exchange_for, take_stats

    def add_request(self, request: Any) -> None:
        self.counts["requests"] += 1
        super().add_request(request)
