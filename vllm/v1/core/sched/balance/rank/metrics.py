# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What balance scheduling did: collected by a rank, on /metrics, and in the log."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.metrics.utils import create_metric_per_engine

from vllm_balance.core.policies.decision import Decision, Learned
from vllm_balance.core.policies.guard import BOUND_REACHED, LOSING
from vllm_balance.core.policies.rows import Snapshot

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.loggers import PrometheusStatLogger

logger = init_logger(__name__)

_MOST_VALUES = 1000
"""Values of a histogram in one report; older ones are lost. A rank that only runs dummy
batches reports nothing, and would collect values without end."""

_GAUGE = "_gauge_cls", "set"
_COUNTER = "_counter_cls", "inc"
_HISTOGRAM = "_histogram_cls", "observe"
"""The logger's classes, of prometheus_client or Ray, and what they do with a value."""

_METRICS = {
    "unprefilled_tokens": (_GAUGE, "Prompt tokens that the rank has still to compute."),
    "context_tokens": (
        _GAUGE,
        "Tokens of the requests in the rank: of their prompts and answers so far.",
    ),
    "held_requests": (
        _GAUGE,
        "Requests that had a slot and were held back in the rank's last step.",
    ),
    "step_cost_seconds": (
        _GAUGE,
        "What the policy has learned that a step costs, by part.",
    ),
    "decisions": (_COUNTER, "Decisions of data parallel balance scheduling."),
    "held_steps": (_COUNTER, "Steps in which the rank held back a request."),
    "exchange_seconds": (
        _HISTOGRAM,
        "Time the rank spent in the exchange of rows, waiting for slower ranks "
        "included.",
    ),
    "held_seconds": (
        _HISTOGRAM,
        "Time for which a prompt could have been computed, until the step that "
        "completed it began.",
    ),
    "ratio": (
        _HISTOGRAM,
        "Mean over maximum, among the ranks, of the tokens of a step.",
    ),
}
"""Kind and documentation of each metric, by its name in a report, which stands behind
`vllm:dp_balance_` on /metrics. A router outside can read the gauges."""

_LABELS = {
    "decisions": ("policy", "decision", "reason"),
    "step_cost_seconds": ("part",),
}
"""Labels of some metrics, beside those that all have."""

_FAST_S = 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2
_SLOW_S = 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 300, 600, 1800
"""Up to the time-outs: 300 s, or 1800 s for the collective calls on the CPU."""

_BUCKETS: dict[str, tuple[float, ...]] = {
    "exchange_seconds": _FAST_S + _SLOW_S,
    "held_seconds": _FAST_S + _SLOW_S,
    "ratio": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
}

_WARNINGS = {
    BOUND_REACHED: "has held a request for as long as it may, and lets all ranks "
    "schedule as if it were off until its turn has come",
    LOSING: "held requests for longer than that has saved, and lets all ranks "
    "schedule as if it were off for a while",
}
"""By a decision's reason, what the log says of the policy the first time. How often it
happens is in the counter of decisions."""


class BalanceStats:
    """Collects in the engine core, between two reports to the front-end.

    The first rank also tells the log what is new: all ranks know it alike.
    """

    def __init__(self, policy: str, rank: int = 0) -> None:
        self._policy, self._rank = policy, rank
        self._resets = 0
        self._cost: dict[str, float] = {}
        self._clear()

    def _clear(self) -> None:
        self._held_steps = 0
        self._decisions: Counter[tuple[str, str, str]] = Counter()
        self._values: dict[str, deque[float]] = {
            field: deque(maxlen=_MOST_VALUES) for field in _BUCKETS
        }

    def set_policy(self, policy: str) -> None:
        """Steps are decided by this policy from now on, which first has no costs."""
        self._policy = policy
        self._cost = dict.fromkeys(self._cost, 0.0)

    def observe_step(
        self,
        decision: Decision,
        snapshot: Snapshot,
        exchange_seconds: float,
        learned: Learned | None = None,
    ) -> None:
        """One exchange: what was decided, from what, and how long it took."""
        verb = "admit" if decision.admit else "hold"
        self._decisions[self._policy, verb, decision.reason] += 1
        both = zip(snapshot.running, snapshot.prefill_tokens, strict=True)
        tokens = [running + prefill for running, prefill in both]
        if len(tokens) > 1:
            self._values["exchange_seconds"].append(exchange_seconds)
            if most := max(tokens):
                self._values["ratio"].append(sum(tokens) / (len(tokens) * most))
        if self._rank == 0 and decision.reason in _WARNINGS:
            what = _WARNINGS[decision.reason]
            logger.warning_once(
                "Data parallel balance: policy %s %s.", self._policy, what
            )
        if learned is not None:
            self._cost = learned.cost._asdict()
            before, self._resets = self._resets, learned.resets
            if self._rank == 0 and before < learned.resets:
                logger.warning(
                    "Data parallel balance: policy %s learns the costs of a step anew, "
                    "because they changed.",
                    self._policy,
                )

    def observe_held(self, seconds: Iterable[float]) -> None:
        """Prompts of this rank that were completed, or are gone."""
        self._values["held_seconds"].extend(seconds)

    def observe_held_step(self) -> None:
        self._held_steps += 1

    def take(self, load: dict[str, int]) -> dict[str, Any]:
        """The report, of plain types, for it is sent as msgpack; then starts anew."""
        report = {
            **load,
            "step_cost_seconds": [[*cost] for cost in self._cost.items()],
            "decisions": [[*key, count] for key, count in self._decisions.items()],
            "held_steps": self._held_steps,
            **{field: [*values] for field, values in self._values.items()},
        }
        self._clear()
        return report


class DPBalanceProm:
    """Records balance scheduling in Prometheus, labelled by engine (rank)."""

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
        self._metrics: dict[str, Any] = {}
        for field, (kind, documentation) in _METRICS.items():
            options: dict[str, Any] = {}
            if kind == _GAUGE:
                options["multiprocess_mode"] = "mostrecent"
            elif kind == _HISTOGRAM:
                options["buckets"] = _BUCKETS[field]
            more = _LABELS.get(field, ())
            metric = getattr(stat_logger, kind[0])(
                name=f"vllm:dp_balance_{field}",
                documentation=documentation,
                labelnames=[*labelnames, *more],
                **options,
            )
            if not more:  # shown from the start
                metric = create_metric_per_engine(metric, per_engine_labelvalues)
            self._metrics[field] = metric

    def observe(self, report: dict[str, Any] | None, engine_idx: int) -> None:
        """Adds one report of `BalanceStats.take` of one engine, if it has one."""
        if report is None:
            return
        for field, ((_, verb), _) in _METRICS.items():
            for metric, value in self._values(field, report[field], engine_idx):
                getattr(metric, verb)(value)

    def _values(
        self, field: str, reported: Any, engine_idx: int
    ) -> Iterator[tuple[Any, float]]:
        metric = self._metrics[field]
        if field in _LABELS:
            labels = self._labelvalues[engine_idx]
            for *more, value in reported:
                yield metric.labels(*labels, *more), value
        else:
            for value in reported if isinstance(reported, list) else [reported]:
                yield metric[engine_idx], value
