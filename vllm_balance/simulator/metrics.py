# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The figures of a run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm_balance.core.policies import NO_LIMITS, LatencyLimits

from .loop import Run, StepTotals
from .requests.request import SimRequest


@dataclass(frozen=True)
class Metrics:
    """Figures of a run, with the names of `vllm bench serve`'s results if it has them.

    A figure is None if it does not exist, as TPOT of answers of one token.
    """

    duration: float
    """Seconds from the first request sent to the last token."""
    steady_duration: float
    """Seconds from the first request sent to the last one sent."""
    completed: int
    total_input_tokens: int
    total_output_tokens: int
    output_throughput: float
    """Output tokens per second, of the whole run."""
    steady_output_throughput: float | None
    """The same until the last request was sent: without the final drain, which a
    closed loop of a server never has. None if that is the start."""
    first_turn: int
    """Requests that a closed loop sends at once; 0 for an open loop."""
    steady_mean_e2el_ms: float | None
    """Mean latency without the first and the last turn of a closed loop, whose requests
    begin on an empty server or end on one that empties."""
    steady_p99_ttft_ms: float | None
    """p99 TTFT of the same requests."""
    mean_ttft_ms: float
    median_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float | None
    median_tpot_ms: float | None
    p99_tpot_ms: float | None
    median_itl_ms: float | None
    p99_itl_ms: float | None
    mean_e2el_ms: float
    balance_ratio: float
    """Mean over maximum of the ranks' tokens in a step, averaged over time."""
    steps: int
    prefill_steps: int
    """Steps in which any rank prefilled."""
    attainment: float | None = None
    """Share of the requests within both limits; None without limits."""

    @property
    def turns(self) -> float:
        """The time of sending over the mean latency."""
        return self.steady_duration / (1e-3 * self.mean_e2el_ms)

    @property
    def compared_throughput(self) -> float | None:
        """Output tokens per second: in a closed loop the steady ones.

        In an open loop it is that of the whole run, because all requests may be sent in
        a short part of it.
        """
        if self.first_turn:
            return self.steady_output_throughput
        return self.output_throughput


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` of the ordered values do not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def attainment(run: Run, limits: LatencyLimits) -> float:
    """Share of the requests within both limits."""
    ttft, tpot = (limit or math.inf for limit in limits)
    return _mean(
        [
            request.first_token - request.sent <= ttft
            and request.done - request.first_token
            <= tpot * max(1, request.output_len - 1)
            for request in run.requests
        ]
    )


def measure(run: Run, limits: LatencyLimits = NO_LIMITS) -> Metrics:
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
    steady = sorted(requests, key=lambda request: request.sent)
    steady = steady[run.first_turn : len(steady) - run.first_turn]
    steady_ttft = sorted(request.first_token - request.sent for request in steady)
    busy = sum(step.seconds for step in steps)
    return Metrics(
        duration=duration,
        steady_duration=run.last_sent - start,
        completed=len(requests),
        total_input_tokens=sum(request.prompt_len for request in requests),
        total_output_tokens=output,
        output_throughput=output / duration,
        steady_output_throughput=_steady_throughput(steps, start, run.last_sent),
        first_turn=run.first_turn,
        steady_mean_e2el_ms=1e3 * _mean_e2el(steady) if steady else None,
        steady_p99_ttft_ms=1e3 * percentile(steady_ttft, 0.99) if steady else None,
        mean_ttft_ms=1e3 * _mean(ttft),
        median_ttft_ms=1e3 * percentile(ttft, 0.5),
        p99_ttft_ms=1e3 * percentile(ttft, 0.99),
        mean_tpot_ms=1e3 * _mean(tpot) if tpot else None,
        median_tpot_ms=1e3 * percentile(tpot, 0.5) if tpot else None,
        p99_tpot_ms=1e3 * percentile(tpot, 0.99) if tpot else None,
        median_itl_ms=1e3 * _weighted_percentile(itl, 0.5) if itl else None,
        p99_itl_ms=1e3 * _weighted_percentile(itl, 0.99) if itl else None,
        mean_e2el_ms=1e3 * _mean_e2el(requests),
        balance_ratio=sum(step.balance * step.seconds for step in steps) / busy,
        steps=len(steps),
        prefill_steps=sum(step.prefill > 0 for step in steps),
        attainment=attainment(run, limits) if any(limits) else None,
    )


def _mean_e2el(requests: Sequence[SimRequest]) -> float:
    return _mean([request.done - request.sent for request in requests])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _steady_throughput(
    steps: Iterable[StepTotals], start: float, end: float
) -> float | None:
    if end <= start:
        return None
    return sum(step.tokens for step in steps if step.end <= end) / (end - start)


def _weighted_percentile(ordered: Sequence[tuple[float, int]], share: float) -> float:
    """Percentile of values with weights; there must be a value."""
    threshold = share * sum(weight for _, weight in ordered)
    reached = 0
    for value, weight in ordered:
        reached += weight
        if reached >= threshold:
            return value
    return ordered[-1][0]
