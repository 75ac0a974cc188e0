"""The simulated cells: regimes, one rank, agents, and instances of one role.

All have as many API servers as ranks, as with `vllm serve`. Our policies have our own
dispatch, `off` and the rules of other engines that of vLLM 0.23.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vllm_balance.core.policies import LatencyLimits
from vllm_balance.simulator.front_end.load_balancers import AS_SERVED
from vllm_balance.simulator.rank.limits import BLOCK_SIZE, RankLimits
from vllm_balance.simulator.requests.arrivals import ClientTraffic, Frontend
from vllm_balance.simulator.requests.traces import TimedTrace, Trace, read_trace
from vllm_balance.simulator.scenario import Scenario, Workload
from vllm_balance.simulator.step_time.model import DEEPSEEK_V3_1, CostModel
from vllm_balance.simulator.step_time.presets import PRESETS

FOLDER = Path(__file__).parent
TRACES = FOLDER / "traces"


@dataclass(frozen=True)
class Cell:
    """A cell of a grid: its scenario and policies, and its labels in the result."""

    labels: Mapping[str, Any]
    """The labels in the result, by which tables select cells."""
    scenario: Scenario
    """The scenario with all slots in use, also where `load` says another load."""
    policies: Sequence[str]
    """Names of policies, or of `VARIANTS`."""
    seeds: tuple[int, ...] = (0,)
    load: float | None = None
    """Share of what `off` serves with all slots in use; None for all slots in use."""
    own_rate: float | None = None
    """Requests per second of the trace itself; None if requests come at random."""


def served(limits: RankLimits, cost: CostModel, *parts: Any, **fields: Any) -> Scenario:
    """A scenario with an API server for each rank."""
    frontend = Frontend(api_servers=limits.ranks)
    fields = {"load_balancer": AS_SERVED} | fields
    return Scenario(limits, cost, *parts, frontend, **fields)


LIMITS = "adaptive, 2 s and 100 ms"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    LIMITS: ("adaptive", {"latency_limits": LatencyLimits(2.0, 0.1)}),
    "adaptive, vLLM's dispatch": ("adaptive", {"load_balancer": "0.23"}),
    "adaptive, one API server": ("adaptive", {"frontend": Frontend()}),
    "off, vLLM 0.30": ("off", {"load_balancer": "0.30"}),
    "align, sessions kept": ("align", {"load_balancer": "session-affinity"}),
    "align, TensorRT-LLM's router": ("align", {"load_balancer": "trtllm-kv-aware"}),
}
"""By name a policy, and the fields of its scenario that differ."""
NEAR = "off", "align", "sglang-100", "sglang23-30", "atom", "mindie-waste"
"""Rules that come near in some cell. SGLang's scripts for Ascend set 100 passes."""
RIVALS = (
    *NEAR,
    "cap",
    "tensorrt-60-0",
    "vllm-4",
    "vllm-8",
    "sglang23-30-10",
    "mindie-laxity",
)
"""The rules that are run in the first regime and at random arrivals: all of them."""

# ---- Regimes


class Window(NamedTuple):
    """Consecutive requests of a trace."""

    trace: str
    file: str
    first: int
    count: int

    def time(self, number: int) -> float:
        """When request `number` of the window comes, in seconds of the trace."""
        return _trace(self.file).rows[self.first + number].time or 0.0

    def rate(self) -> float:
        """Requests per second."""
        last = self.count - 1
        return last / (self.time(last) - self.time(0))


CODE = "Azure code", "azure_2023_code.csv"
CONV = "Azure conv", "azure_2023_conv.csv"
MOONCAKE = "Mooncake", "mooncake_conversation.jsonl"
WINDOWS = (
    *(Window(*CODE, first, 1500) for first in (1500, 6000)),
    *(Window(*CONV, first, 1500) for first in (3000, 1500)),
    *(Window(*MOONCAKE, first, 600) for first in (700, 3600)),
)
"""Windows on which no constant was chosen."""
UNSEEN = (
    *(Window(*CODE, first, 1500) for first in (0, 3000, 4450)),
    *(Window(*CONV, first, 1500) for first in (0, 4600, 6200, 7800, 9400)),
    *(Window(*MOONCAKE, first, 600) for first in (0, 1350, 1950, 2550, 3000)),
)
"""Windows on which no rule was chosen either."""
FIRST, LONGER = WINDOWS[::2], [Window(*trace, 100, 4096) for trace in (CODE, CONV)]
FILLING = 256
"""Slots of a rank whose KV cache is full long before all of them are in use."""
KV_TOKENS = {"Azure code": 40_000, "Azure conv": 30_000, "Mooncake": 250_000}
"""Tokens of the KV cache of such a rank."""
ACCEPTANCE = 0.85, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15
"""Assumed acceptance rates by position of the draft: upstream names none."""


@cache
def _trace(file: str) -> Trace:
    return read_trace(TRACES / file)


class Regime(NamedTuple):
    """The ranks, loads and policies of cells on traces."""

    ranks: int = 8
    slots: int = 32
    step: int = 8192
    drafts: int = 0
    cost: CostModel = replace(DEEPSEEK_V3_1, phi=0.3)
    windows: Sequence[Window] = FIRST
    loads: Sequence[float | None] = (None, 0.9)
    policies: Sequence[str] = ("adaptive", LIMITS, *NEAR)
    changes: Mapping[str, Any] = {}
    """Further fields of the scenario."""

    def scenario(self, window: Window) -> Scenario:
        """A window with all slots in use: twice as many requests are in flight."""
        kv_blocks = (
            KV_TOKENS[window.trace] // BLOCK_SIZE if self.slots == FILLING else None
        )
        rates = ACCEPTANCE[: self.drafts]
        limits = RankLimits(self.ranks, self.slots, self.step, kv_blocks, rates)
        timed = TimedTrace(start=window.time(0))
        in_flight = min(2 * self.ranks * self.slots, window.count // 2)
        return served(
            limits,
            self.cost,
            Workload(window.count, trace=TRACES / window.file, timed_trace=timed),
            ClientTraffic(max_concurrency=in_flight),
            **self.changes,
        )


USUAL = Regime(
    windows=WINDOWS,
    loads=(None, 0.3, 0.6, 0.9),
    policies=("adaptive", LIMITS, *RIVALS),
)
REGIMES = {
    "8 ranks, 32 slots, steps of 8,192": USUAL,
    "2 ranks": Regime(2),
    "4 ranks": Regime(4),
    "32 ranks": Regime(32, windows=LONGER),
    "64 ranks": Regime(64, windows=LONGER),
    "2 ranks, 256 slots, caches that fill": Regime(2, 256),
    "4 ranks, 256 slots, caches that fill": Regime(4, 256),
    "8 ranks, 256 slots, caches that fill": Regime(8, 256),
    "asynchronous scheduling": Regime(changes={"async_scheduling": True}),
    "three drafts": Regime(drafts=3),
    "steps of 2,048": Regime(step=2048),
    "steps of 32,768": Regime(step=32_768),
    "phi 0": Regime(cost=DEEPSEEK_V3_1),
    "phi 0.5, padded": Regime(cost=replace(DEEPSEEK_V3_1, phi=0.5, padded=1)),
    "skewed by a router outside": Regime(changes={"load_balancer": "skewed"}),
}
"""Regimes by name."""

FIXED = Workload(2048, "3500", "normal:1500:0.015")
CHAT = Workload(2048, "lognormal:600:1:8000", "lognormal:300:0.8:4000")
PROMPTS = Workload(2048, "lognormal:2000:0.7:8000", "lognormal:200:0.7")


def drawn(workload: Workload, ranks: int, cost: CostModel, blocks: int | None) -> Any:
    """Drawn lengths, with all of 32 slots in use."""
    limits = RankLimits(ranks, 32, 4096, blocks)
    return served(limits, cost, workload, ClientTraffic(max_concurrency=32 * ranks))


def on_windows(name: str, regime: Regime) -> Iterator[Cell]:
    """A regime on each of its windows, with each load."""
    for window in regime.windows:
        for load in regime.loads:
            labels = {"regime": name, "of": window.trace, "first": window.first}
            scenario, rate = regime.scenario(window), window.rate()
            labels |= {"load": load}
            yield Cell(labels, scenario, regime.policies, (0,), load, rate)


def unseen() -> Iterator[Cell]:
    """The first regime on windows that were not used for any choice."""
    yield from on_windows("unseen windows", Regime(windows=UNSEEN))


def regimes() -> Iterator[Cell]:
    """Windows of traces in each regime, and drawn lengths."""
    for name, regime in REGIMES.items():
        yield from on_windows(name, regime)
    policies, cost = USUAL.policies, USUAL.cost
    for of, workload in (("600/300", CHAT), ("2000/200", PROMPTS)):
        for ranks in (4, 16):
            for load in (0.35, 0.5, 0.65):
                name = "requests come at random, drawn lengths"
                labels = {"regime": name, "of": of, "first": ranks, "load": load}
                scenario = drawn(workload, ranks, cost, None)
                yield Cell(labels, scenario, policies, (0,), load)
    for of, workload, blocks in (("3500/1500", FIXED, 4250), ("600/300", CHAT, 1200)):
        for phi in (0.0, 0.3):
            name = "4 ranks, half the cache, drawn lengths"
            labels = {"regime": name, "of": of, "first": phi, "load": None}
            scenario = drawn(workload, 4, replace(cost, phi=phi), blocks)
            yield Cell(labels, scenario, Regime().policies, (2, 4))


# ---- One rank


def one_rank() -> Iterator[Cell]:
    """Windows of traces, by what leaving the graph for a prompt costs, and by slots."""
    loads = None, 0.6, 0.9
    for c in (0.0, 0.034, 0.11):
        for slots in (16, 64, FILLING):
            regime = Regime(1, slots, cost=replace(USUAL.cost, c=c))
            for window in regime.windows:
                for load in loads:
                    labels = {"c": c, "slots": slots, "of": window.trace, "load": load}
                    scenario, rate = regime.scenario(window), window.rate()
                    policies = "adaptive", "off"
                    yield Cell(labels, scenario, policies, (0,), load, rate)


# ---- Agents, and instances that only prefill or only decode

ON_AGENTS = (
    "adaptive",
    "adaptive, vLLM's dispatch",
    "adaptive, one API server",
    "off",
    "align, sessions kept",
    "align, TensorRT-LLM's router",
)
ON_ROLES = ("adaptive", "off", "off, vLLM 0.30")


AGENTX, AIPERF = "agentx/held_out.jsonl", "aiperf.jsonl"
"""Sessions of agents. Nothing was chosen on them."""


def of_agents(
    per_rank: int, shared: int = 0, trace: str = AGENTX, **fields: Any
) -> Scenario:
    """`per_rank` concurrent sessions on each of 8 ranks, with a KV cache of 1 M tokens.

    All prompts begin with `shared` equal tokens.
    """
    sessions = per_rank * 8
    blocks = None if fields.get("role") == "decode" else 1_000_000 // BLOCK_SIZE
    workload = Workload(
        21 * sessions,
        trace=TRACES / trace,
        session_shared=shared,
        session_turns=16,
    )
    traffic = ClientTraffic(max_concurrency=sessions)
    limits, cost = RankLimits(8, 16, 8192, blocks), PRESETS["a3-dp4-tp4"]
    return served(limits, cost, workload, traffic, **fields)


def agents() -> Iterator[Cell]:
    """Cells of sessions, by number and shared tokens; then instances of one role."""
    for per_rank, shared in ((2, 0), (4, 0), (8, 0), (4, 15_000)):
        labels = {"role": "both", "of": "agents", "ranks": 8, "load": per_rank * 8}
        labels |= {"shared": shared}
        yield Cell(labels, of_agents(per_rank, shared), ON_AGENTS, (0, 1, 2))
    for role, window, preset, ranks in (
        ("decode", Window(*MOONCAKE, 1200, 1500), "a3-dp16-tp1", 16),
        ("decode", Window(*MOONCAKE, 1200, 1500), "a3-dp4-tp4", 4),
        ("decode", Window(*CONV, 7000, 1500), "a3-dp16-tp1", 16),
        ("prefill", Window(*MOONCAKE, 1200, 1500), "a3-dp16-tp1", 16),
        ("prefill", Window(*MOONCAKE, 1200, 1500), "a3-dp4-tp4", 4),
        ("prefill", Window(*CONV, 7000, 1500), "a3-dp16-tp1", 16),
    ):
        regime = Regime(ranks, 48, cost=PRESETS[preset], changes={"role": role})
        for load in (0.5, 0.9):
            labels = {"role": role, "of": window.trace, "ranks": ranks, "load": load}
            scenario, rate = regime.scenario(window), window.rate()
            yield Cell(labels, scenario, ON_ROLES, (0,), load, rate)
    for role in ("prefill", "decode"):
        labels = {"role": role, "of": "agents", "ranks": 8, "load": 32}
        yield Cell(labels, of_agents(4, role=role), ON_ROLES)


def aiperf() -> Iterator[Cell]:
    """Cells of sessions that AIPerf has synthesized."""
    labels = {"role": "both", "of": "agents", "ranks": 8, "load": 32, "shared": 0}
    yield Cell(labels, of_agents(4, trace=AIPERF), ON_AGENTS, (0, 1, 2))


GRIDS: dict[str, Callable[[], Iterator[Cell]]] = {
    "regimes": regimes,
    "unseen": unseen,
    "one_rank": one_rank,
    "agents": agents,
    "aiperf": aiperf,
}
"""Grids, by the name of the result."""
