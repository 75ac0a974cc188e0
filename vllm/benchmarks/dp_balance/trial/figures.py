# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The figures of a turn, from what `vllm bench serve --save-detailed` saved."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from ..metrics import percentile

Saved = Mapping[str, Any]
STEADY = "steady_output_throughput"


def figures_of(saved: Saved) -> dict[str, float]:
    """Named as in `metrics.Metrics`; times are in ms, throughputs in tokens per second.

    Args:
        saved: a result of which every request succeeded.
    """
    ttfts, itls, outputs = saved["ttfts"], saved["itls"], saved["output_lens"]
    lasts = [ttft + sum(gaps) for ttft, gaps in zip(ttfts, itls, strict=True)]
    starts = saved["start_times"]
    ends = [start + last for start, last in zip(starts, lasts, strict=True)]
    tpots = [
        (last - ttft) / (count - 1)
        for last, ttft, count in zip(lasts, ttfts, outputs, strict=True)
        if count > 1
    ]
    gaps = sorted(gap for each in itls for gap in each)
    ordered = sorted(ttfts)
    duration = max(ends) - min(starts)
    found = {
        "output_throughput": sum(outputs) / duration,
        STEADY: steady_throughput(saved),
        "mean_e2el_ms": statistics.fmean(lasts),
        "mean_tpot_ms": statistics.fmean(tpots) if tpots else 0.0,
        "median_ttft_ms": statistics.median(ordered),
        "p99_ttft_ms": percentile(ordered, 0.99),
        "p99_itl_ms": percentile(gaps, 0.99) if gaps else 0.0,
    }
    return {
        name: value * 1e3 if name.endswith("_ms") else value
        for name, value in found.items()
    } | {"duration": duration, "requests": len(starts)}


def steady_throughput(saved: Mapping[str, Sequence[Any]]) -> float:
    """Output tokens per second until the last request was sent; 0 for one request."""
    start, last = min(saved["start_times"]), max(saved["start_times"])
    times = zip(saved["start_times"], saved["ttfts"], saved["itls"], strict=True)
    tokens = sum(
        sent + offset <= last
        for sent, ttft, itls in times
        for offset in accumulate(itls, initial=ttft)
    )
    return tokens / (last - start) if last > start else 0.0
