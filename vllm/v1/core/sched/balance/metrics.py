# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What balance scheduling did: collected by a rank, on /metrics, and in the log."""

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.core.sched.balance.policies.decision import Decision, Learned
from vllm.v1.core.sched.balance.policies.guard import BOUND_REACHED, LOSING
from vllm.v1.core.sched.balance.policies.rows import Snapshot
from vllm.v1.metrics.utils import create_metric_per_engine

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.loggers import PrometheusStatLogger

logger = init_logger(__name__)

_MOST_VALUES = 1000
"""Of a histogram in one report: a rank that only runs dummy batches reports nothing for
as long as it has no request. Older ones are lost."""

_LOG_PERIOD_S = 60.0

_HISTOGRAMS: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "budgets": (
        "vllm:dp_balance_prefill_budget_tokens",
        "Prompt tokens that each rank was granted, by the decisions that admit.",
        (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    ),
    "exchange_seconds": (
        "vllm:dp_balance_exchange_seconds",
        "Time the rank spent in the exchange of rows, waiting for slower ranks "
        "included.",
        # Up to the time-outs: 300 s, or 1800 s for the collective calls on the CPU.
        (
            *(1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
            *(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 300, 600, 1800),
        ),
    ),
    "balance_ratios": (
        "vllm:dp_balance_ratio",
        "Mean over maximum, among the ranks, of the tokens of a step.",
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
    ),
}
"""By the field of the report that goes into it: name, documentation and buckets."""

_COUNTERS = {
    "held_steps": (
        "vllm:dp_balance_held_steps",
        "Steps in which the rank held back a request.",
    ),
    "set_backs": (
        "vllm:dp_balance_cost_set_backs",
        "How often what steps cost was forgotten because it had changed.",
    ),
}

_GAUGES = {
    "unprefilled": (
        "vllm:dp_balance_unprefilled_tokens",
        "Prompt tokens that the rank has still to compute.",
    ),
    "context": (
        "vllm:dp_balance_context_tokens",
        "Tokens of the requests in the rank: of their prompts and answers so far.",
    ),
    "held": (
        "vllm:dp_balance_held_requests",
        "Requests that had a slot and were held back in the rank's last step.",
    ),
}
"""The same of the report's load, which a router outside can read."""


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
        self._values: dict[str, deque[float]] = {
            field: deque(maxlen=_MOST_VALUES) for field in _HISTOGRAMS
        }

    def observe_step(
        self,
        decision: Decision,
        snapshot: Snapshot,
        exchange_seconds: float,
        learned: Learned | None = None,
    ) -> None:
        """One exchange: what was decided, from what, and how long it took."""
        if not self._collect:
            return
        self._learned = learned
        verb = "admit" if decision.admit else "hold"
        self._decisions[verb, decision.reason] += 1
        if decision.admit:
            budget, limit = decision.prefill_budget, max(snapshot.max_tokens)
            granted = limit if budget is None else min(budget, limit)
            self._values["budgets"].append(granted)
        self._values["exchange_seconds"].append(exchange_seconds)
        both = zip(snapshot.running, snapshot.prefill_tokens, strict=True)
        tokens = [running + prefill for running, prefill in both]
        if most := max(tokens):
            ratio = sum(tokens) / (len(tokens) * most)
            self._values["balance_ratios"].append(ratio)

    def observe_held_step(self) -> None:
        """This rank held back a request in a step."""
        self._held_steps += self._collect

    def take(self, load: dict[str, int]) -> dict[str, object]:
        """The report, of plain types, for it is sent as msgpack; then starts anew.

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
            "decisions": [[*key, count] for key, count in self._decisions.items()],
            "held_steps": self._held_steps,
            **{field: [*values] for field, values in self._values.items()},
        }
        self._told_set_backs = set_backs
        self._clear()
        return report


class DPBalanceProm:
    """Records balance scheduling in Prometheus, labelled by engine (rank).

    The share of steps in which a rank held back requests:

      rate(vllm:dp_balance_held_steps_total[$interval]) /
      sum by (engine) (rate(vllm:dp_balance_decisions_total[$interval]))
    """

    def __init__(
        self,
        stat_logger: "PrometheusStatLogger",
        vllm_config: "VllmConfig",
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        if vllm_config.parallel_config.data_parallel_balance == "off":
            return
        self._labelvalues = per_engine_labelvalues
        # The logger's classes: those of prometheus_client, or Ray's.
        counter, histogram = stat_logger._counter_cls, stat_logger._histogram_cls
        gauge = stat_logger._gauge_cls

        def per_engine(kind: Any, name: str, documentation: str, **more: Any) -> Any:
            metric = kind(
                name=name, documentation=documentation, labelnames=labelnames, **more
            )
            return create_metric_per_engine(metric, per_engine_labelvalues)

        self._counters = {
            field: per_engine(counter, *about) for field, about in _COUNTERS.items()
        }
        self._histograms = {
            field: per_engine(histogram, name, documentation, buckets=buckets)
            for field, (name, documentation, buckets) in _HISTOGRAMS.items()
        }
        self._gauges = {
            field: per_engine(gauge, *about, multiprocess_mode="mostrecent")
            for field, about in _GAUGES.items()
        }
        self._decisions = counter(
            name="vllm:dp_balance_decisions",
            documentation="Decisions of data parallel balance scheduling.",
            labelnames=[*labelnames, "policy", "decision", "reason"],
        )
        self._step_cost = gauge(
            name="vllm:dp_balance_step_cost_seconds",
            documentation="What the policy has learned that a step costs, by part.",
            labelnames=[*labelnames, "part"],
            multiprocess_mode="mostrecent",
        )

    def observe(self, report: dict[str, Any] | None, engine_idx: int) -> None:
        """Adds one report of `BalanceStats.take` of one engine, if it has one."""
        if report is None:
            return
        labels = self._labelvalues[engine_idx]
        for field, gauge in self._gauges.items():
            gauge[engine_idx].set(report["load"][field])
        for field, counter in self._counters.items():
            counter[engine_idx].inc(report[field])
        for field, histogram in self._histograms.items():
            for value in report[field]:
                histogram[engine_idx].observe(value)
        for decision, reason, count in report["decisions"]:
            label = self._decisions.labels(*labels, report["policy"], decision, reason)
            label.inc(count)
        for part, seconds in report["step_cost"].items():
            self._step_cost.labels(*labels, part).set(seconds)


class PolicyLog:
    """What the log says of a policy, each kind of notice at most once a minute.

    All ranks know it alike, so that the first one says it.
    """

    def __init__(self, policy: str, rank: int) -> None:
        self._policy = policy
        self._is_first = rank == 0
        self._times: Counter[str] = Counter()
        self._said: dict[str, float] = {}
        self._before = ""
        self._set_backs = 0

    def observe(self, decision: Decision, learned: Learned | None, now: float) -> None:
        """Says what is new after a step, at that time in seconds."""
        if not self._is_first:
            return
        before, self._before = self._before, decision.reason
        if decision.reason == BOUND_REACHED:
            self._warn(
                now,
                "has held a request for as long as it may, and lets all ranks schedule "
                "one step as if it were off",
            )
        if decision.reason == LOSING != before:
            self._warn(
                now,
                "held requests for longer than that has saved, and lets all ranks "
                "schedule as if it were off for a while",
            )
        set_backs = 0 if learned is None else learned.set_backs
        if set_backs > self._set_backs:
            self._warn(now, "learns the costs of a step anew, because they changed")
        self._set_backs = set_backs

    def _warn(self, now: float, text: str) -> None:
        self._times[text] += 1
        if now - self._said.get(text, -math.inf) < _LOG_PERIOD_S:
            return
        self._said[text] = now
        logger.warning(
            f"Data parallel balance: policy %s {text}. So far: %d.",
            *(self._policy, self._times[text]),
        )
