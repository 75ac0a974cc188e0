"""What is simulated: cells of scenarios and policies, by the result."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vllm.benchmarks.dp_balance.front_end.load_balancers import AS_SERVED, BY_PREFIXES
from vllm.benchmarks.dp_balance.rank.limits import BLOCK_SIZE, RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic, Frontend
from vllm.benchmarks.dp_balance.requests.traces import TimedTrace, Trace, read_trace
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload
from vllm.benchmarks.dp_balance.step_time.model import DEEPSEEK_V3_1, CostModel
from vllm.benchmarks.dp_balance.step_time.presets import PRESETS

TRACES = Path(__file__).parent / "traces"


class Load(NamedTuple):
    """How fast a trace is sent: a share of what a policy serves without a pause."""

    share: float
    of: str = "off"


@dataclass(frozen=True)
class Cell:
    """One place of a grid: what is run there, and what the result says of it."""

    labels: Mapping[str, Any]
    """As in the result, which a page selects cells by."""
    scenario: Scenario
    """With a load: as it is with all slots in use."""
    policies: tuple[str, ...]
    """Names of policies, or of `VARIANTS`."""
    seeds: tuple[int, ...] = (0,)
    load: Load | None = None
    own_rate: float = 0.0
    """Requests per second of the trace by itself."""


WITH_VLLM_DISPATCH = "adaptive, vLLM's dispatch"
"""Shows what the dispatch by prompt tokens brings."""
ALIKE = {"load_balancer": BY_PREFIXES, "short_first": True}
SERVED_ALIKE = {
    f"{policy}, order and dispatch": (policy, ALIKE)
    for policy in ("align", "sglang23-30")
}
"""Rules of others, served as `adaptive` is: they show whose a gain is."""
TRTLLM_ROUTER = {"load_balancer": "trtllm-kv-aware"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **SERVED_ALIKE,
    WITH_VLLM_DISPATCH: ("adaptive", {"load_balancer": "0.23"}),
    "adaptive, 4 API servers": ("adaptive", {"frontend": Frontend(api_servers=4)}),
    "adaptive, 8 API servers": ("adaptive", {"frontend": Frontend(api_servers=8)}),
    "align, sessions kept": ("align", {"load_balancer": "session-affinity"}),
    "align, tpu-inference's dispatch": ("align", {"load_balancer": "tpu-inference"}),
    "off, vLLM 0.30": ("off", {"load_balancer": "0.30"}),
    "trtllm, its router": ("trtllm", TRTLLM_ROUTER),
    "trtllm, its router and chunks": (
        *("trtllm:kv_cost_offset=10000,kv_depth_threshold=20000", TRTLLM_ROUTER),
    ),
}
"""By name, a policy that is served in another way than its own, and what differs in the
scenario."""

# ---- Real traces

ON_TRACES = (
    *("adaptive", WITH_VLLM_DISPATCH, "off", "cap", "align", "sglang-30"),
    *("sglang-100", "sglang23-30", "interval-64", "trtllm"),
)
TRADE_OFFS = tuple(name for name in VARIANTS if name.endswith("API servers"))
"""What else is run where `COSTS` are `TRADE_OFF_COST` and the load is known."""
WHOSE = ("adaptive-fcfs", *SERVED_ALIKE)
"""What else is run there at every load."""
TRADE_OFF_COST = "phi 0.3"
COSTS = {
    "phi 0": replace(DEEPSEEK_V3_1, phi=0.0),
    "phi 0.3": replace(DEEPSEEK_V3_1, phi=0.3),
    "phi 0.5": replace(DEEPSEEK_V3_1, phi=0.5),
    "phi 0.5, padded": replace(DEEPSEEK_V3_1, phi=0.5, padded=1),
}
LOADS = (*map(Load, (0.3, 0.6, 0.9, 1.3)), Load(1.2, "adaptive"))
RANKS, SLOTS = 8, 32
STEP = 8192  # tokens of the largest one


class Window(NamedTuple):
    """Consecutive requests of a trace."""

    trace: str
    file: str
    first: int
    count: int


CODE = "Azure code", "azure_2023_code.csv"
CONV = "Azure conv", "azure_2023_conv.csv"
MOONCAKE = "Mooncake", "mooncake_conversation.jsonl"
WINDOWS = (
    *(Window(*CODE, first, 1500) for first in (1500, 4500, 6000)),
    *(Window(*CONV, first, 1500) for first in (3000, 9000, 1500)),
    *(Window(*MOONCAKE, first, 600) for first in (700, 2200, 3600)),
)
"""No constant was chosen on them; on the last of each trace nothing had been run."""


@cache
def _trace(file: str) -> Trace:
    return read_trace(TRACES / file)


def all_slots(
    window: Window, limits: RankLimits, cost: CostModel, share: float = 1.0
) -> tuple[Scenario, float]:
    """A window with all slots in use, and its own requests per second.

    `share` are requests in flight per slot; some are left to send while they are.
    """
    times = [row.time or 0.0 for row in _trace(window.file).rows]
    start, end = times[window.first], times[window.first + window.count - 1]
    in_flight = min(
        round(share * limits.ranks * limits.max_num_seqs), window.count // 2
    )
    scenario = Scenario(
        limits,
        cost,
        Workload(
            window.count,
            trace=TRACES / window.file,
            timed_trace=TimedTrace(start=start),
        ),
        ClientTraffic(max_concurrency=in_flight),
        load_balancer=AS_SERVED,
    )
    return scenario, (window.count - 1) / (end - start)


def on_trace(window: Window, cost: str, load: Load) -> Cell:
    """A window of a trace at a load."""
    whose = WHOSE if cost == TRADE_OFF_COST else ()
    own = TRADE_OFFS if whose and load.of == "off" else ()
    labels = {
        **{"trace": window.trace, "first": window.first, "count": window.count},
        "cost": cost,
        "load": load.share if load.of == "off" else None,
    }
    limits = RankLimits(RANKS, SLOTS, STEP)
    scenario, rate = all_slots(window, limits, COSTS[cost], share=2.0)
    policies = (*ON_TRACES, *whose, *own)
    return Cell(labels, scenario, policies, load=load, own_rate=rate)


def traces() -> Iterator[Cell]:
    """The windows at all loads and in all forms of the cost."""
    for cost in COSTS:
        for window in WINDOWS:
            for load in LOADS:
                yield on_trace(window, cost, load)


# ---- Drawn lengths

FIXED = Workload(2048, "3500", "normal:1500:0.015")
CHAT = Workload(2048, "lognormal:600:1:8000", "lognormal:300:0.8:4000")
PROMPTS = Workload(2048, "lognormal:2000:0.7:8000", "lognormal:200:0.7")


class Drawn(NamedTuple):
    """A workload of drawn lengths on any number of ranks, in a closed loop."""

    workload: Workload
    """The lengths."""
    share: float = 1.0
    """Requests in flight per slot."""
    slots: int = 32
    """Of each rank."""
    turns: int = 4
    """The least number of requests for each that is in flight."""
    kv_blocks: int | None = None
    """Of each rank; None for as many as it can use."""
    load_balancer: str = AS_SERVED

    def scenario(self, ranks: int, phi: float) -> Scenario:
        """With this number of ranks, which bear this share of a prefill together."""
        in_flight = round(self.share * ranks * self.slots)
        return Scenario(
            RankLimits(ranks, self.slots, 4096, self.kv_blocks),
            replace(DEEPSEEK_V3_1, phi=phi),
            replace(self.workload, num_prompts=max(2048, self.turns * in_flight)),
            ClientTraffic(max_concurrency=in_flight),
            load_balancer=self.load_balancer,
        )


SYNTHETIC = {
    "3500/1500 ±1.5 %": Drawn(FIXED),
    "3500/1500, twice the slots": Drawn(FIXED, share=2.0),
    # They begin and end together; what the last have done is not counted: one in 24.
    "3500/1500 exactly": Drawn(Workload(2048, "3500", "1500"), turns=24),
    "3500/1500, half the KV cache": Drawn(FIXED, kv_blocks=4250),
    "8000/200 ±15 %": Drawn(Workload(2048, "normal:8000:0.15", "normal:200:0.15")),
    "lognormal 600/300": Drawn(CHAT),
    "lognormal 600/300, 75 % of the slots": Drawn(CHAT, share=0.75),
    "lognormal 600/300, half the KV cache": Drawn(CHAT, kv_blocks=1200),
    "lognormal 600/300, skewed routing": Drawn(CHAT, load_balancer="skewed"),
    "lognormal 2000/200": Drawn(PROMPTS),
    "lognormal 2000/200, 90 % prefix hits": Drawn(replace(PROMPTS, prefix_share=0.9)),
    "lognormal 200/2000": Drawn(
        Workload(2048, "lognormal:200:0.7", "lognormal:2000:0.5:8000")
    ),
    "short prompts, 4 slots": Drawn(
        Workload(2048, "lognormal:128:0.6", "lognormal:300:0.6"), slots=4
    ),
}
"""By a name for the table. Steps have 4096 tokens."""
SYNTHETIC_POLICIES = (
    *("adaptive", "off", "align", "cap:margin=1", "sglang-100", "sglang23-30"),
    *("interval-64", "trtllm"),
)
"""Each baseline in the setting that gained most on average with another seed."""


def synthetic() -> Iterator[Cell]:
    """Workloads × ranks × phi."""
    for title, drawn in SYNTHETIC.items():
        for ranks in (4, 16):
            for phi in (0.0, 0.3, 0.9):
                scenario = drawn.scenario(ranks, phi)
                labels = {"workload": title, "ranks": ranks, "phi": phi}
                yield Cell(labels, scenario, SYNTHETIC_POLICIES, (2, 4))


# ---- Agents

RIVALS = (
    *("align, sessions kept", "align, tpu-inference's dispatch"),
    *("trtllm, its router", "trtllm, its router and chunks"),
)
ON_AGENTS = ("adaptive", WITH_VLLM_DISPATCH, "off", *RIVALS)


def on_agents(
    ranks: int,
    per_rank: int,
    cache: int,
    shared: int = 0,
    policies: tuple[str, ...] = ON_AGENTS,
) -> Cell:
    """Sessions of AgentX that nothing was chosen on, so many at a time for each rank.

    `cache` are tokens in the KV cache of a rank, `shared` those of all prompts.
    """
    sessions = per_rank * ranks
    scenario = Scenario(
        RankLimits(ranks, 16, STEP, cache // BLOCK_SIZE),
        PRESETS["a3-dp4-tp4"],
        Workload(
            21 * sessions,
            trace=TRACES / "agentx" / "held_out.jsonl",
            session_shared=shared,
            session_turns=16,
        ),
        ClientTraffic(max_concurrency=sessions),
        load_balancer=AS_SERVED,
    )
    labels = {
        **{"ranks": ranks, "sessions": sessions},
        **{"cache": cache, "shared": shared},
    }
    return Cell(labels, scenario, policies)


def agents() -> Iterator[Cell]:
    """KV caches × loads; with what all share; and by number of ranks."""
    for tokens in (500_000, 1_000_000, 4_000_000):
        for per_rank in (2, 4, 8):
            yield on_agents(RANKS, per_rank, tokens)
    yield on_agents(RANKS, 4, 1_000_000, shared=15_000)
    for ranks in (1, 2, 4, 16):
        yield on_agents(ranks, 4, 1_000_000, policies=("adaptive", "off"))


# ---- Instances that only prefill or only decode

ON_ROLES = ("adaptive", "off", "off, vLLM 0.30")
A3_DP16, A3_DP4 = ("a3-dp16-tp1", 16, 48), ("a3-dp4-tp4", 4, 48)
"""Cost preset, ranks and slots."""
ROLE_LOADS = 0.5, 0.8, 0.95


def roles() -> Iterator[Cell]:
    """Windows of traces at several loads, and sessions of agents."""
    long, short = Window(*MOONCAKE, 1200, 3000), Window(*CONV, 7000, 3000)
    for role, window, sizes in (
        ("decode", long, (A3_DP16, A3_DP4, ("deepseek-v3.1-5212", 8, 64))),
        ("decode", short, (A3_DP16,)),
        ("prefill", long._replace(count=1500), (A3_DP16, A3_DP4)),
        ("prefill", short, (A3_DP16,)),
    ):
        for preset, ranks, slots in sizes:
            limits = RankLimits(ranks, slots, STEP)
            scenario, rate = all_slots(window, limits, PRESETS[preset])
            scenario = replace(scenario, role=role)
            for load in ROLE_LOADS:
                labels = {"role": role, "of": window.trace, "cost": preset}
                labels |= {"ranks": ranks, "slots": slots, "load": load}
                yield Cell(labels, scenario, ON_ROLES, (0,), Load(load), rate)
    for role, blocks in (("prefill", 1_000_000 // BLOCK_SIZE), ("decode", None)):
        for per_rank in (4, 8):
            cell = on_agents(RANKS, per_rank, 1_000_000)
            limits = replace(cell.scenario.limits, kv_blocks=blocks)
            labels = {"role": role, "of": "agents", "cost": "a3-dp4-tp4"}
            labels |= {"ranks": RANKS, "slots": 16, "sessions": per_rank * RANKS}
            scenario = replace(cell.scenario, limits=limits, role=role)
            yield Cell(labels, scenario, ON_ROLES)


GRIDS: dict[str, Callable[[], Iterator[Cell]]] = {
    "traces": traces,
    "synthetic": synthetic,
    "agents": agents,
    "roles": roles,
}
"""By the name of the result."""
