# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The figures of a turn, from what `vllm bench serve --save-detailed` saves."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

Saved = Mapping[str, Any]
STEADY = "steady_output_throughput"
JUDGED = "mean_e2el_ms"
FIGURES = {
    STEADY: ("output tokens per second", 1.0, "{:.0f}"),
    "output_throughput": ("output tokens per second, whole run", 1.0, "{:.0f}"),
    JUDGED: ("seconds a request takes, mean", 1e-3, "{:.2f}"),
    "mean_tpot_ms": ("ms between tokens, mean (TPOT)", 1.0, "{:.1f}"),
    "median_ttft_ms": ("seconds to first token, median", 1e-3, "{:.2f}"),
    "p99_ttft_ms": ("seconds to first token, p99", 1e-3, "{:.2f}"),
    "p99_itl_ms": ("ms between tokens, p99 (ITL)", 1.0, "{:.0f}"),
}
"""Named as upstream saves them, but for the first: title, scale and format."""


def figures_of(saved: Saved) -> dict[str, float]:
    """What upstream has measured, and tokens until the last request was sent.

    0 where there is none.

    Args:
        saved: a result of which every request succeeded.
    """
    sent = saved["start_times"]
    first, last = min(sent), max(sent)
    steady = sum(
        time <= last
        for start, ttft, gaps in zip(sent, saved["ttfts"], saved["itls"], strict=True)
        for time in accumulate(gaps, initial=start + ttft)
    )
    rate = steady / (last - first) if last > first else 0.0
    found = {name: float(saved.get(name) or 0.0) for name in FIGURES}
    return found | {STEADY: rate}
