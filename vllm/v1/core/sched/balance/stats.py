# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What balance scheduling did since the last report. Pure Python."""

from collections import Counter

from .decision import Decision
from .rows import Snapshot


class BalanceStats:
    """Collects in the engine core, between two reports to the front-end."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._clear()

    def _clear(self) -> None:
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._held_steps = 0
        self._hold_lengths: list[int] = []
        self._hold_seconds: list[float] = []
        self._budgets: list[int] = []
        self._exchange_seconds: list[float] = []
        self._balance_ratios: list[float] = []

    def observe_step(
        self, decision: Decision, snapshot: Snapshot, exchange_seconds: float
    ) -> None:
        """One exchange: what was decided, from what, and how long it took."""
        verb = "admit" if decision.admit else "hold"
        self._decisions[verb, decision.reason] += 1
        if decision.admit:
            budget = decision.prefill_budget
            limit = max(snapshot.max_tokens)
            self._budgets.append(limit if budget is None else min(budget, limit))
        self._exchange_seconds.append(exchange_seconds)
        tokens = [
            running + prefill
            for running, prefill in zip(
                snapshot.running, snapshot.prefill_tokens, strict=True
            )
        ]
        if most := max(tokens):
            self._balance_ratios.append(sum(tokens) / (len(tokens) * most))

    def observe_held_step(self) -> None:
        """This rank held back an admissible request in a step."""
        self._held_steps += 1

    def observe_hold_end(self, steps: int, seconds: float) -> None:
        """A hold of this rank ended after that many steps, and seconds."""
        self._hold_lengths.append(steps)
        self._hold_seconds.append(seconds)

    def take(self) -> dict[str, object] | None:
        """The report as plain types (it is sent as msgpack), or None if nothing
        happened; then starts anew."""
        if not self._decisions and not self._hold_lengths and not self._held_steps:
            return None
        report: dict[str, object] = {
            "policy": self._policy,
            "decisions": [
                [verb, reason, count]
                for (verb, reason), count in self._decisions.items()
            ],
            "held_steps": self._held_steps,
            "hold_lengths": self._hold_lengths,
            "hold_seconds": self._hold_seconds,
            "budgets": self._budgets,
            "exchange_seconds": self._exchange_seconds,
            "balance_ratios": self._balance_ratios,
        }
        self._clear()
        return report
