# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The figures of a turn, from what `vllm bench serve --save-detailed` saves."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from ..metrics import percentile

Saved = Mapping[str, Any]
STEADY = "steady_output_throughput"
JUDGED = "mean_e2el_ms"
SIMULATED = {
    STEADY: ("output tokens per second", 1.0, "{:.0f}"),
    "output_throughput": ("output tokens per second, whole run", 1.0, "{:.0f}"),
    JUDGED: ("seconds a request takes, mean", 1e-3, "{:.2f}"),
    "mean_tpot_ms": ("ms between tokens, mean (TPOT)", 1.0, "{:.1f}"),
    "median_ttft_ms": ("seconds to first token, median", 1e-3, "{:.2f}"),
    "p99_ttft_ms": ("seconds to first token, p99", 1e-3, "{:.2f}"),
    "p99_itl_ms": ("ms between tokens, p99 (ITL)", 1.0, "{:.0f}"),
}
"""Named as in `metrics.Metrics`: title, scale and format."""
FIGURES = SIMULATED | {
    "computed_share": ("share of prompt tokens computed", 1.0, "{:.2f}")
}


def figures_of(saved: Saved) -> dict[str, float]:
    """Times are in ms, throughputs in tokens per second.

    Args:
        saved: a result of which every request succeeded.
    """
    starts, ttfts, itls = saved["start_times"], saved["ttfts"], saved["itls"]
    lasts = [ttft + sum(gaps) for ttft, gaps in zip(ttfts, itls, strict=True)]
    last = max(map(sum, zip(starts, lasts, strict=True)))
    outputs = zip(lasts, ttfts, saved["output_lens"], strict=True)
    tpots = [(end - ttft) / (count - 1) for end, ttft, count in outputs if count > 1]
    gaps = sorted(gap for each in itls for gap in each)
    return {
        STEADY: steady_throughput(saved),
        "output_throughput": sum(saved["output_lens"]) / (last - min(starts)),
        JUDGED: 1e3 * statistics.fmean(lasts),
        "mean_tpot_ms": 1e3 * statistics.fmean(tpots or [0.0]),
        "median_ttft_ms": 1e3 * statistics.median(ttfts),
        "p99_ttft_ms": 1e3 * percentile(sorted(ttfts), 0.99),
        "p99_itl_ms": 1e3 * percentile(gaps or [0.0], 0.99),
    }


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
