"""The modelled ranks serve as real schedulers with real gates do, within 2 %."""

import inspect
import math
from dataclasses import replace

import pytest
from vllm.benchmarks.dp_balance.metrics import measure
from vllm.benchmarks.dp_balance.rank.limits import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload, simulate
from vllm.benchmarks.dp_balance.step_time.model import CostModel
from vllm.v1.core.block_pool import BlockPool

from real_ranks import simulate_real

COST = CostModel(t0=0.03, a=4e-4, b=2e-4, c=0.02, context=6e-8, attention=1e-6, phi=0.2)
PLAIN = Scenario(
    RankLimits(4, 16, 256),
    COST,
    Workload(600, input_len="lognormal:80:1:400", output_len="lognormal:60:1:200"),
    ClientTraffic(max_concurrency=96),
)
CLOSED, OPEN = PLAIN.traffic, ClientTraffic(request_rate=8.0)


def world(scenario, kv_blocks=None, rates=(), **changes):
    limits = replace(scenario.limits, kv_blocks=kv_blocks, acceptance_rates=rates)
    return replace(scenario, limits=limits, **changes)


SHARED = replace(PLAIN.workload, prefix_share=0.6, num_prefixes=8)
DRAFTS = (0.85, 0.65)
WORLDS = {
    "closed loop": (PLAIN, "adaptive"),
    "open loop": (world(PLAIN, traffic=OPEN), "adaptive"),
    "asynchronous": (world(PLAIN, async_scheduling=True), "adaptive"),
    "cap": (PLAIN, "cap"),
    "align": (PLAIN, "align"),
    "full cache": (world(PLAIN, 150), "adaptive"),
    "full cache, asynchronous": (world(PLAIN, 150, async_scheduling=True), "align"),
    "drafts": (world(PLAIN, rates=DRAFTS), "adaptive"),
    "drafts, full cache": (world(PLAIN, 150, DRAFTS, async_scheduling=True), "cap"),
    "shared prefixes": (world(PLAIN, workload=SHARED), "adaptive"),
    "shared prefixes, full cache": (world(PLAIN, 150, workload=SHARED), "adaptive"),
    "short first": (world(PLAIN, 200, short_first=True, traffic=OPEN), "adaptive"),
}
EVICTS_DIFFERENTLY = (
    "prepend" not in inspect.signature(BlockPool.free_blocks).parameters
)
"""From 0.30 on blocks of which nothing is cached are taken first."""


@pytest.mark.parametrize("name", WORLDS)
def test_the_model_is_near_the_real_schedulers(name):
    scenario, policy = WORLDS[name]
    modelled, real = (
        measure(run(scenario, policy, 1)) for run in (simulate, simulate_real)
    )
    for figure in ("output_throughput", "mean_ttft_ms", "mean_e2el_ms"):
        mine, theirs = getattr(modelled, figure), getattr(real, figure)
        print(name, figure, mine, theirs)
        assert math.isclose(mine, theirs, rel_tol=0.02), figure
