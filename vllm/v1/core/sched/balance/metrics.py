# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Balance scheduling on /metrics."""

from collections import defaultdict
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.balance.stats import HISTOGRAMS
from vllm.v1.metrics.utils import create_metric_per_engine

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.loggers import PrometheusStatLogger

_Bins = dict[int, tuple[int, float]]
"""By the number of the bin: how many values, and their sum."""

_MOST_OBSERVED = 1000
"""Values that one report adds to a histogram; Prometheus takes them one at a time, and
the front-end has requests to serve. The others follow with the next reports."""

_HISTOGRAMS = {
    "budgets": (
        "vllm:dp_balance_prefill_budget_tokens",
        "Prompt tokens that each rank was granted, by the decisions that admit.",
    ),
    "exchange_seconds": (
        "vllm:dp_balance_exchange_seconds",
        "Time the rank spent in the exchange of rows, waiting for slower ranks "
        "included.",
    ),
    "balance_ratios": (
        "vllm:dp_balance_ratio",
        "Mean over maximum, among the ranks, of the tokens of a step.",
    ),
}
"""By the field of the report that goes into it: name and documentation."""

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
        self._decisions = counter(
            name="vllm:dp_balance_decisions",
            documentation="Decisions of data parallel balance scheduling.",
            labelnames=[*labelnames, "policy", "decision", "reason"],
        )

        def per_engine(metric: Any) -> dict[int, Any]:
            return create_metric_per_engine(metric, per_engine_labelvalues)

        self._held_steps = per_engine(
            counter(
                name="vllm:dp_balance_held_steps",
                documentation="Steps in which the rank held back a request.",
                labelnames=labelnames,
            )
        )
        self._histograms = {
            field: per_engine(
                histogram(
                    name=name,
                    documentation=documentation,
                    buckets=HISTOGRAMS[field],
                    labelnames=labelnames,
                )
            )
            for field, (name, documentation) in _HISTOGRAMS.items()
        }
        self._gauges = {
            field: per_engine(
                gauge(
                    name=name,
                    documentation=documentation,
                    labelnames=labelnames,
                    multiprocess_mode="mostrecent",
                )
            )
            for field, (name, documentation) in _GAUGES.items()
        }
        self._step_cost = gauge(
            name="vllm:dp_balance_step_cost_seconds",
            documentation="What the policy has learned that a step costs, by part.",
            labelnames=[*labelnames, "part"],
            multiprocess_mode="mostrecent",
        )
        self._set_backs = per_engine(
            counter(
                name="vllm:dp_balance_cost_set_backs",
                documentation="How often what steps cost was forgotten because it "
                "had changed.",
                labelnames=labelnames,
            )
        )
        self._pending: defaultdict[tuple[str, int], _Bins] = defaultdict(dict)

    def observe(self, report: dict[str, Any] | None, engine_idx: int) -> None:
        """Adds one report of `BalanceStats.take` of one engine, if it has one."""
        if report is None:
            return
        for field, gauge in self._gauges.items():
            gauge[engine_idx].set(report["load"][field])
        labels = self._labelvalues[engine_idx]
        for decision, reason, count in report["decisions"]:
            self._decisions.labels(*labels, report["policy"], decision, reason).inc(
                count
            )
        self._held_steps[engine_idx].inc(report["held_steps"])
        self._set_backs[engine_idx].inc(report["set_backs"])
        for part, seconds in report["step_cost"].items():
            self._step_cost.labels(*labels, part).set(seconds)
        for name, metric in self._histograms.items():
            pending = self._pending[name, engine_idx]
            for index, count, total in report[name]:
                before = pending.get(index, (0, 0.0))
                pending[index] = (before[0] + count, before[1] + total)
            _drain(pending, HISTOGRAMS[name], metric[engine_idx].observe)


def _drain(
    pending: _Bins, bounds: tuple[float, ...], observe: Callable[[float], None]
) -> None:
    """Observes values as the mean of their bin, so that counts and sums stay exact.

    Args:
        pending: the bins; those values that are over the limit stay there.
        bounds: their upper bounds, but for the last one.
        observe: adds one value to the histogram.
    """
    room = _MOST_OBSERVED
    for index in list(pending):
        count, total = pending.pop(index)
        # The mean of equal values may be rounded above the bound.
        mean = min(total / count, (*bounds, inf)[index])
        observed = min(count, room)
        for _ in range(observed):
            observe(mean)
        room -= observed
        if observed < count:
            pending[index] = (count - observed, total - observed * mean)
