# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The figures of a run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .loop import Run, StepTotals


@dataclass(frozen=True)
class Metrics:
    """Named as `vllm bench serve` names them in its saved results, where it does."""

    duration: float
    """Seconds from the first request sent to the last token."""
    steady_duration: float
    """Seconds from the first request sent to the last one sent."""
    completed: int
    total_input_tokens: int
    total_output_tokens: int
    output_throughput: float
    """Output tokens per second, of the whole run."""
    steady_output_throughput: float
    """The same until the last request was sent: without the final drain, which a
    closed loop of a server never has. NaN if that is the start."""
    mean_ttft_ms: float
    median_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    median_tpot_ms: float
    p99_tpot_ms: float
    median_itl_ms: float
    p99_itl_ms: float
    mean_e2el_ms: float
    balance_ratio: float
    """Mean over maximum of the ranks' tokens in a step, averaged over time."""
    steps: int
    prefill_steps: int
    """Steps in which any rank prefilled."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` of the ordered values do not exceed; NaN of none."""
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(run: Run) -> Metrics:
    """The metrics of a run that has ended."""
    requests, steps = run.requests, run.steps
    start = min(request.sent for request in requests)
    duration = max(request.done for request in requests) - start
    output = sum(request.output_len for request in requests)
    ttft = sorted(request.first_token - request.sent for request in requests)
    tpot = sorted(
        (request.done - request.first_token) / (request.output_len - 1)
        for request in requests
        if request.output_len > 1
    )
    itl = sorted((step.seconds, step.decodes) for step in steps if step.decodes)
    busy = sum(step.seconds for step in steps)
    return Metrics(
        duration=duration,
        steady_duration=run.last_sent - start,
        completed=len(requests),
        total_input_tokens=sum(request.prompt_len for request in requests),
        total_output_tokens=output,
        output_throughput=output / duration,
        steady_output_throughput=_steady_throughput(steps, start, run.last_sent),
        mean_ttft_ms=1e3 * _mean(ttft),
        median_ttft_ms=1e3 * percentile(ttft, 0.5),
        p99_ttft_ms=1e3 * percentile(ttft, 0.99),
        mean_tpot_ms=1e3 * _mean(tpot),
        median_tpot_ms=1e3 * percentile(tpot, 0.5),
        p99_tpot_ms=1e3 * percentile(tpot, 0.99),
        median_itl_ms=1e3 * _weighted_percentile(itl, 0.5),
        p99_itl_ms=1e3 * _weighted_percentile(itl, 0.99),
        mean_e2el_ms=1e3 * _mean([r.done - r.sent for r in requests]),
        balance_ratio=sum(step.balance * step.seconds for step in steps) / busy,
        steps=len(steps),
        prefill_steps=sum(step.prefill > 0 for step in steps),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _steady_throughput(steps: Iterable[StepTotals], start: float, end: float) -> float:
    if end <= start:
        return math.nan
    return sum(step.tokens for step in steps if step.end <= end) / (end - start)


def _weighted_percentile(ordered: Sequence[tuple[float, int]], share: float) -> float:
    """Percentile of values that each occur as often as their weight says."""
    threshold = share * sum(weight for _, weight in ordered)
    reached = 0
    for value, weight in ordered:
        reached += weight
        if reached >= threshold:
            return value
    return math.nan
