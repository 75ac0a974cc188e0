# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What balance scheduling did since the last report. Pure Python.

Its size does not depend on how long ago that was: a rank that only runs dummy batches
reports nothing for as long as it has no request.
"""

from bisect import bisect_left
from collections import Counter

from .policies.decision import Decision, Learned
from .policies.rows import Snapshot

HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "budgets": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    # Up to the time-outs: 300 s, or 1800 s for the collective calls on the CPU.
    "exchange_seconds": (
        *(1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
        *(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 300, 600, 1800),
    ),
    "balance_ratios": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
}
"""The upper bounds of the bins of each histogram; above the last one there is one
more."""


class BalanceStats:
    """Collects in the engine core, between two reports to the front-end."""

    def __init__(self, policy: str, collect: bool = True) -> None:
        """Statistics of one rank.

        Args:
            policy: the policy's name.
            collect: whether anybody will take the reports.
        """
        self._policy = policy
        self._collect = collect
        self._learned: Learned | None = None
        self._told_set_backs = 0
        self._clear()

    def _clear(self) -> None:
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._held_steps = 0
        self._bins: dict[str, dict[int, tuple[int, float]]] = {
            name: {} for name in HISTOGRAMS
        }

    def _observe(self, name: str, value: float) -> None:
        bins = self._bins[name]
        index = bisect_left(HISTOGRAMS[name], value)
        count, total = bins.get(index, (0, 0.0))
        bins[index] = count + 1, total + value

    def observe_step(
        self, decision: Decision, snapshot: Snapshot, exchange_seconds: float
    ) -> None:
        """One exchange: what was decided, from what, and how long it took."""
        if not self._collect:
            return
        verb = "admit" if decision.admit else "hold"
        self._decisions[verb, decision.reason] += 1
        if decision.admit:
            budget = decision.prefill_budget
            limit = max(snapshot.max_tokens)
            self._observe("budgets", limit if budget is None else min(budget, limit))
        self._observe("exchange_seconds", exchange_seconds)
        tokens = [
            running + prefill
            for running, prefill in zip(
                snapshot.running, snapshot.prefill_tokens, strict=True
            )
        ]
        if most := max(tokens):
            self._observe("balance_ratios", sum(tokens) / (len(tokens) * most))

    def observe_learned(self, learned: Learned | None) -> None:
        """What the policy knows of the device now."""
        self._learned = learned

    def observe_held_step(self) -> None:
        """This rank held back a request in a step."""
        self._held_steps += self._collect

    def take(self, load: dict[str, int]) -> dict[str, object]:
        """The report; then starts anew.

        It is made of plain types, for it is sent as msgpack. A histogram is a list of
        the bins that are not empty: number of the bin, number of its values, and their
        sum.

        Args:
            load: what the rank has to do now, by name.
        """
        learned = self._learned
        set_backs = 0 if learned is None else learned.set_backs
        report: dict[str, object] = {
            "policy": self._policy,
            "load": load,
            "step_cost": {} if learned is None else learned.cost._asdict(),
            # A new group of ranks counts from 0.
            "set_backs": max(0, set_backs - self._told_set_backs),
            "decisions": [
                [verb, reason, count]
                for (verb, reason), count in self._decisions.items()
            ],
            "held_steps": self._held_steps,
            **{
                name: [[index, count, total] for index, (count, total) in bins.items()]
                for name, bins in self._bins.items()
            },
        }
        self._told_set_backs = set_backs
        self._clear()
        return report
