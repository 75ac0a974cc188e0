# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Balance scheduling on /metrics."""

from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.utils import create_metric_per_engine

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.loggers import PrometheusStatLogger

_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
_TOKENS = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
_HOLD_SECONDS = [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
_SECONDS = [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.5, 1.0]
_RATIOS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0]


class DPBalanceProm:
    """Records balance scheduling in Prometheus, labelled by engine (rank).

    The share of steps in which a rank held back admissible requests:

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
                documentation="Steps in which the rank held back an admissible "
                "request.",
                labelnames=labelnames,
            )
        )
        self._hold_lengths = per_engine(
            histogram(
                name="vllm:dp_balance_hold_length_steps",
                documentation="Length of the holds that ended, in steps.",
                buckets=_STEPS,
                labelnames=labelnames,
            )
        )
        self._hold_seconds = per_engine(
            histogram(
                name="vllm:dp_balance_hold_length_seconds",
                documentation="Length of the holds that ended, in seconds.",
                buckets=_HOLD_SECONDS,
                labelnames=labelnames,
            )
        )
        self._budgets = per_engine(
            histogram(
                name="vllm:dp_balance_prefill_budget_tokens",
                documentation="Prompt tokens that each rank was granted, by the "
                "decisions that admit.",
                buckets=_TOKENS,
                labelnames=labelnames,
            )
        )
        self._exchange_seconds = per_engine(
            histogram(
                name="vllm:dp_balance_exchange_seconds",
                documentation="Time the rank spent in the exchange of rows, waiting "
                "for slower ranks included.",
                buckets=_SECONDS,
                labelnames=labelnames,
            )
        )
        self._balance_ratios = per_engine(
            histogram(
                name="vllm:dp_balance_ratio",
                documentation="Mean over maximum, among the ranks, of the tokens of "
                "a step.",
                buckets=_RATIOS,
                labelnames=labelnames,
            )
        )

    def observe(self, report: dict[str, Any] | None, engine_idx: int) -> None:
        """Adds one report of `BalanceStats.take` of one engine, if it has one."""
        if report is None:
            return
        labels = self._labelvalues[engine_idx]
        for decision, reason, count in report["decisions"]:
            self._decisions.labels(*labels, report["policy"], decision, reason).inc(
                count
            )
        self._held_steps[engine_idx].inc(report["held_steps"])
        for metric, values in (
            (self._hold_lengths, report["hold_lengths"]),
            (self._hold_seconds, report["hold_seconds"]),
            (self._budgets, report["budgets"]),
            (self._exchange_seconds, report["exchange_seconds"]),
            (self._balance_ratios, report["balance_ratios"]),
        ):
            for value in values:
                metric[engine_idx].observe(value)
