"""The grid of the frontier: workloads × ranks × phi, and who is compared on it."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from vllm.benchmarks.dp_balance.front_end.load_balancers import AS_SERVED
from vllm.benchmarks.dp_balance.metrics import throughput_bound
from vllm.benchmarks.dp_balance.rank.engine import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload
from vllm.benchmarks.dp_balance.step_time.model import DEEPSEEK_V3_1

RANKS = (4, 8, 16, 32)
PHIS = (0.0, 0.3, 0.6, 0.9)

BASELINES = {
    "cap": ("cap", "cap:margin=1"),
    "align": ("align", "align:batching_steps=20", "align:timeout_steps=100"),
    "SGLang-style": ("sglang-30", "sglang-100"),
    "SGLang 0.5.23": ("sglang23-30", "sglang23-100"),
    "interval-N": ("interval-8", "interval-64"),
    "TensorRT-LLM": ("trtllm", "trtllm:batching_wait_iters=20"),
}
"""Settings of each baseline, its default or published one first. One is chosen per
baseline for all cells."""

CHOICE_SEEDS = (1,)
CHOICE_PHIS = (0.3,)
"""The settings are chosen by these runs, which are not reported."""
REPORT_SEEDS = (2, 4, 6)
TTFT_BUDGETS = (1, 2, 4, 8)
"""Seconds."""
BUDGET_SEEDS = REPORT_SEEDS[:1]

FIXED = Workload(2048, "3500", "normal:1500:0.015")
CHAT = Workload(2048, "lognormal:600:1:8000", "lognormal:300:0.8:4000")


@dataclass(frozen=True)
class GridCell:
    """One place of the grid."""

    workload: str
    ranks: int
    phi: float
    scenario: Scenario

    @property
    def name(self) -> str:
        """Unique in the grid."""
        return f"{self.workload}, {self.ranks} ranks, phi {self.phi:g}"

    @property
    def is_closed_loop(self) -> bool:
        """Judged by steady throughput; open loops by mean end-to-end latency."""
        return self.scenario.traffic.is_closed_loop


def closed_loop(
    workload: Workload,
    share: float = 1.0,
    slots: int = 32,
    skew: float = 0.0,
    turns: int = 4,
) -> Callable[[int, float], Scenario]:
    """A maker of scenarios with so many requests in flight per slot.

    Args:
        workload: the lengths.
        share: requests in flight per slot.
        slots: of each rank.
        skew: of the routing; 0 for the load balancers of the servers.
        turns: at least so many requests per one in flight.
    """

    def make(ranks: int, phi: float) -> Scenario:
        in_flight = round(share * ranks * slots)
        return Scenario(
            RankLimits(ranks, slots, 4096),
            replace(DEEPSEEK_V3_1, phi=phi),
            replace(workload, num_prompts=max(2048, turns * in_flight)),
            ClientTraffic(max_concurrency=in_flight),
            load_balancer="skewed" if skew else AS_SERVED,
            skew=skew,
        )

    return make


def open_loop(workload: Workload, share: float) -> Callable[[int, float], Scenario]:
    """A maker of scenarios with Poisson arrivals.

    Args:
        workload: the lengths.
        share: of the rate that perfectly balanced ranks could serve.
    """

    def make(ranks: int, phi: float) -> Scenario:
        scenario = closed_loop(workload)(ranks, phi)
        requests = scenario.workload.requests(random.Random("capacity"))
        tokens = sum(request.output_len for request in requests)
        bound = throughput_bound(requests, scenario.limits, None, scenario.cost)
        rate = share * bound / tokens * len(requests)
        return replace(scenario, traffic=ClientTraffic(request_rate=rate))

    return make


EXACT_TURNS = 24
"""Requests of equal lengths begin and end together, so that what the last ones have
done when the last is sent, which is no longer counted, weighs one part in so many."""
LIGHT = ("10 % of capacity", "30 % of capacity")

WORKLOADS: dict[str, Callable[[int, float], Scenario]] = {
    "3500/1500 ±1.5 %": closed_loop(FIXED),
    "3500/1500, 75 % of the slots": closed_loop(FIXED, 0.75),
    "3500/1500, twice the slots": closed_loop(FIXED, 2.0),
    "3500/1500 exactly": closed_loop(Workload(2048, "3500", "1500"), turns=EXACT_TURNS),
    "8000/200 exactly": closed_loop(Workload(2048, "8000", "200"), turns=EXACT_TURNS),
    "8000/200 ±15 %": closed_loop(
        Workload(2048, "normal:8000:0.15", "normal:200:0.15")
    ),
    "lognormal 600/300": closed_loop(CHAT),
    "lognormal 600/300, 75 % of the slots": closed_loop(CHAT, 0.75),
    "lognormal 600/300, skewed routing": closed_loop(CHAT, skew=0.3),
    "lognormal 2000/200, 50 % prefix hits": closed_loop(
        Workload(2048, "lognormal:2000:0.7:8000", "lognormal:200:0.7", prefix_share=0.5)
    ),
    "lognormal 2000/200, 90 % prefix hits": closed_loop(
        Workload(2048, "lognormal:2000:0.7:8000", "lognormal:200:0.7", prefix_share=0.9)
    ),
    "lognormal 2000/200": closed_loop(
        Workload(2048, "lognormal:2000:0.7:8000", "lognormal:200:0.7")
    ),
    "lognormal 200/2000": closed_loop(
        Workload(2048, "lognormal:200:0.7", "lognormal:2000:0.5:8000")
    ),
    "short prompts, 4 slots": closed_loop(
        Workload(2048, "lognormal:128:0.6", "lognormal:300:0.6"), slots=4
    ),
    LIGHT[0]: open_loop(CHAT, 0.10),
    LIGHT[1]: open_loop(CHAT, 0.30),
    "60 % of capacity": open_loop(CHAT, 0.60),
}
"""By a name for the tables. 32 slots per rank unless said otherwise; steps have 4096
tokens, so that a prompt of 8000 needs two or more."""


def grid() -> Iterator[GridCell]:
    """All cells, workload by workload."""
    for workload, make in WORKLOADS.items():
        for ranks in RANKS:
            for phi in PHIS:
                yield GridCell(workload, ranks, phi, make(ranks, phi))
