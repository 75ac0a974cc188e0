# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The figures of a turn, from what `vllm bench serve --save-detailed` saves."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from ..loop import Run, StepTotals
from ..metrics import measure
from ..requests.request import SimRequest

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
"""Named as in `metrics.Metrics`: title, scale and format."""


def figures_of(saved: Saved) -> dict[str, float]:
    """What `metrics.measure` makes of it; 0 where there is none.

    Args:
        saved: a result of which every request succeeded.
    """
    requests, steps = [], []
    names = ("start_times", "ttfts", "itls", "output_lens")
    for index, row in enumerate(zip(*(saved[name] for name in names), strict=True)):
        sent, ttft, gaps, count = row
        first, *times = accumulate(gaps, initial=sent + ttft)
        request = SimRequest(index, 0, count, sent=sent, first_token=first)
        request.done = times[-1] if times else first
        requests.append(request)
        # For the figures, each token is a step of one rank.
        steps.append(StepTotals(first, ttft, 1, decodes=0, prefill=1, balance=1.0))
        for end, gap in zip(times, gaps, strict=True):
            steps.append(StepTotals(end, gap, 1, decodes=1, prefill=0, balance=1.0))
    found = measure(Run(requests, steps, max(saved["start_times"]), first_turn=0))
    return {name: getattr(found, name) or 0.0 for name in FIGURES}
