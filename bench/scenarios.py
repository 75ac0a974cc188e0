"""The workloads on which the policies are compared, and what is varied on them."""

from dataclasses import replace
from pathlib import Path

from vllm.benchmarks.dp_balance.front_end.load_balancers import AS_SERVED
from vllm.benchmarks.dp_balance.rank.engine import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload
from vllm.benchmarks.dp_balance.step_time.model import DEEPSEEK_V3_1

PUBLISHED = {
    "off": {"output_throughput": 1297.0, "mean_tpot_ms": 86.85},
    "cap": {"output_throughput": 1531.0, "mean_tpot_ms": 70.63},
}
"""What vllm-ascend #5212 reports for DeepSeek-V3.1: 3500 input and 1500 output tokens,
512 requests, batch 128."""

FIGURES = (
    "output_throughput",
    "steady_output_throughput",
    "mean_tpot_ms",
    "median_ttft_ms",
    "p99_ttft_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
)
"""What is kept of a run."""

RANKS = RankLimits(ranks=4, max_num_seqs=32, max_num_batched_tokens=4096)

PUBLISHED_RUN = Scenario(
    RANKS,
    DEEPSEEK_V3_1,
    Workload(512, "3500", "normal:1500:0.015"),
    ClientTraffic(max_concurrency=128),
)
"""The published run. Output lengths vary by 1.5 %, which is part of the fit; requests
are dispatched by vLLM, as then."""

FIXED = replace(
    PUBLISHED_RUN,
    workload=replace(PUBLISHED_RUN.workload, num_prompts=2048),
    load_balancer=AS_SERVED,
)
CHAT = replace(
    FIXED, workload=Workload(2048, "lognormal:600:1:8000", "lognormal:300:0.8:4000")
)


def at_concurrency(scenario: Scenario, concurrency: int) -> Scenario:
    """The scenario as a closed loop of so many requests."""
    return replace(scenario, traffic=ClientTraffic(max_concurrency=concurrency))


def at_rate(scenario: Scenario, rate: float) -> Scenario:
    """The scenario with so many requests per second."""
    return replace(scenario, traffic=ClientTraffic(request_rate=rate))


WORKLOADS: dict[str, Scenario] = {
    "3500/1500 ±1.5 %, all slots": FIXED,
    "3500/1500 ±1.5 %, 75 % of the slots": at_concurrency(FIXED, 96),
    "3500/1500 ±1.5 %, twice the slots": at_concurrency(FIXED, 256),
    "3500/1500 exactly, all slots": replace(
        FIXED, workload=Workload(2048, "3500", "1500")
    ),
    "lognormal 600/300, all slots": CHAT,
    "lognormal 600/300, 75 % of the slots": at_concurrency(CHAT, 96),
    "lognormal 600/300, skewed routing": replace(
        CHAT, load_balancer="skewed", skew=0.3
    ),
    "lognormal 600/300, sticky sessions": replace(
        CHAT, load_balancer="sticky", skew=0.5
    ),
    "lognormal 600/300, load balancer of 0.30": replace(CHAT, load_balancer="0.30"),
    "lognormal 600/300, 2 requests/s (light)": at_rate(CHAT, 2.0),
    "lognormal 600/300, 4 requests/s": at_rate(CHAT, 4.0),
    "lognormal 2000/200, all slots": replace(
        FIXED, workload=Workload(2048, "lognormal:2000:0.7:8000", "lognormal:200:0.7")
    ),
    "lognormal 200/2000, all slots": replace(
        FIXED, workload=Workload(1024, "lognormal:200:0.7", "lognormal:2000:0.5:8000")
    ),
    "lognormal 600/300, 16 ranks of 8": replace(CHAT, limits=RankLimits(16, 8, 4096)),
}
"""By a name for the table."""

KV_LIMITED = {
    "lognormal 600/300": replace(CHAT, limits=replace(RANKS, kv_blocks=1200)),
    "3500/1500 ±1.5 %": replace(FIXED, limits=replace(RANKS, kv_blocks=4250)),
}
"""As many requests as slots, but a KV cache for about half of them."""

VARIATIONS: dict[str, Scenario] = {
    "as fitted": FIXED,
    **{
        f"phi {phi:g}": replace(FIXED, cost=replace(FIXED.cost, phi=phi))
        for phi in (0.3, 0.6, 0.9)
    },
    **{
        f"{name} × {factor:g}": replace(
            FIXED,
            cost=replace(FIXED.cost, **{name: getattr(FIXED.cost, name) * factor}),
        )
        for name in ("t0", "b", "c")
        for factor in (0.5, 2)
    },
    "noise ±10 %": replace(FIXED, cost=replace(FIXED.cost, noise=0.2)),
    "asynchronous scheduling": replace(FIXED, async_scheduling=True),
}
"""What is varied on the fixed lengths."""

CHAT_VARIATIONS = {
    name: replace(
        CHAT,
        cost=scenario.cost,
        async_scheduling=scenario.async_scheduling,
    )
    for name, scenario in VARIATIONS.items()
}
"""The same on lognormal lengths."""


def scaled(ranks: int) -> Scenario:
    """Eight slots a rank, the work per rank always the same."""
    return replace(
        CHAT,
        limits=RankLimits(ranks, 8, 4096),
        workload=replace(CHAT.workload, num_prompts=32 * ranks),
        traffic=ClientTraffic(max_concurrency=8 * ranks),
    )


SCALES = (4, 16, 64, 256)
"""Data parallel sizes."""


def whole_trace(path: Path) -> Scenario:
    """All requests of a trace at their own times, on 8 ranks of 32 slots."""
    return Scenario(
        RankLimits(8, 32, 8192),
        replace(DEEPSEEK_V3_1, phi=0.5),
        Workload(None, trace=path),
        ClientTraffic(self_timed=True),
        load_balancer=AS_SERVED,
    )


TRACES = {
    name: Path(__file__).parent / "traces" / file
    for name, file in (
        ("Azure code", "azure_2023_code.csv"),
        ("Azure conv", "azure_2023_conv.csv"),
        ("Mooncake, with prefix hits", "mooncake_conversation.jsonl"),
    )
}
