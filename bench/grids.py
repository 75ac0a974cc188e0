"""What is simulated: regimes, no barrier, one rank, deployments, agents, single roles.

Everybody has as many API servers as ranks, which is what `vllm serve` starts, and the
dispatch that is theirs: our policies ours, `off` and the rules of other engines that of
vLLM 0.23.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from no_barrier import without_barrier
from vllm_balance.simulator.front_end.load_balancers import AS_SERVED, BY_PREFIXES
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
    """One place of a grid: what is run there, and what the result says of it."""

    labels: Mapping[str, Any]
    """As in the result, which a table selects cells by."""
    scenario: Scenario
    """With a load: as it is with all slots in use."""
    policies: Sequence[str]
    """Names of policies, or of `VARIANTS`."""
    seeds: tuple[int, ...] = (0,)
    load: float | None = None
    """Share of what `off` serves with all slots in use; None for all slots in use."""
    own_rate: float | None = None
    """Requests per second of the trace by itself; None: they come at random."""


def served(limits: RankLimits, cost: CostModel, *parts: Any, **more: Any) -> Scenario:
    """With an API server for each rank."""
    frontend = Frontend(api_servers=limits.ranks)
    more = {"load_balancer": AS_SERVED} | more
    return Scenario(limits, cost, *parts, frontend, **more)


VLLM = {"load_balancer": "0.23"}
OURS = {"load_balancer": BY_PREFIXES}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "our dispatch alone": ("off", OURS),
    "align, vLLM's dispatch": ("align", VLLM),
    "align, our order": ("align", {"short_first": True}),
    "adaptive, in order, vLLM's dispatch": ("adaptive", VLLM | {"short_first": False}),
    "adaptive, in order": ("adaptive", {"short_first": False}),
    "adaptive, vLLM's dispatch": ("adaptive", VLLM),
    "adaptive, one API server": ("adaptive", {"frontend": Frontend()}),
    "off, one API server": ("off", {"frontend": Frontend()}),
    "off, vLLM 0.30": ("off", {"load_balancer": "0.30"}),
    "align, sessions kept": ("align", {"load_balancer": "session-affinity"}),
    "align, TensorRT-LLM's router": ("align", {"load_balancer": "trtllm-kv-aware"}),
}
"""By name, a policy that is served in another way than its own, and what differs."""
RIVALS = (
    "off",
    "align",
    "sglang-100",
    "sglang-200",
    "sglang23-30",
    "sglang23-200",
    "atom",
    "eb",
)
"""SGLang's launch scripts for Ascend set 100 or 200 passes."""
APART = tuple(VARIANTS)[:8]
"""Which show whose a gain is, and what another number of API servers does."""

# ---- Regimes


class Window(NamedTuple):
    """Consecutive requests of a trace."""

    trace: str
    file: str
    first: int
    count: int

    def time(self, number: int) -> float:
        """When the first, 0, or another of them comes, in seconds of the trace."""
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
"""No constant was chosen on them."""
UNSEEN = (
    *(Window(*CODE, first, 1500) for first in (0, 3000, 4450)),
    *(Window(*CONV, first, 1500) for first in (0, 4600, 6200, 7800, 9400)),
    *(Window(*MOONCAKE, first, 600) for first in (0, 1350, 1950, 2550, 3000)),
)
"""By which nothing was judged before it was settled."""
FIRST, LONGER = WINDOWS[::2], [Window(*each, 100, 4096) for each in (CODE, CONV)]
FILLING = 256
"""Slots of a rank whose cache fills long before they are in use."""
KV_TOKENS = {"Azure code": 40_000, "Azure conv": 30_000, "Mooncake": 250_000}
"""In the cache of such a rank."""
ACCEPTANCE = 0.85, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15
"""Assumed: upstream does not say how many drafts are accepted."""


@cache
def _trace(file: str) -> Trace:
    return read_trace(TRACES / file)


class Regime(NamedTuple):
    """How the ranks of a cell on traces are."""

    ranks: int = 8
    slots: int = 32
    step: int = 8192
    drafts: int = 0
    cost: CostModel = replace(DEEPSEEK_V3_1, phi=0.3)
    windows: Sequence[Window] = FIRST
    loads: Sequence[float | None] = (None, 0.9)
    policies: Sequence[str] = ("adaptive", *RIVALS)
    more: Mapping[str, Any] = {}
    """What else differs in the scenario."""

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
            **self.more,
        )


MANY = ("adaptive", "off", "align", "sglang-100", "atom")
USUAL = Regime(
    windows=WINDOWS,
    loads=(None, 0.3, 0.6, 0.9),
    policies=("adaptive", "cap", *RIVALS, *APART),
)
REGIMES = {
    "8 ranks, 32 slots, steps of 8,192": USUAL,
    "2 ranks": Regime(2),
    "4 ranks": Regime(4),
    "32 ranks": Regime(32, windows=LONGER, policies=MANY),
    "64 ranks": Regime(64, windows=LONGER, policies=MANY),
    "2 ranks, 256 slots, caches that fill": Regime(2, 256),
    "4 ranks, 256 slots, caches that fill": Regime(4, 256),
    "8 ranks, 256 slots, caches that fill": Regime(8, 256),
    "asynchronous scheduling": Regime(more={"async_scheduling": True}),
    "three drafts": Regime(drafts=3),
    "steps of 2,048": Regime(step=2048),
    "steps of 32,768": Regime(step=32_768),
    "phi 0": Regime(cost=DEEPSEEK_V3_1),
    "phi 0.5, padded": Regime(cost=replace(DEEPSEEK_V3_1, phi=0.5, padded=1)),
    "skewed by a router outside": Regime(more={"load_balancer": "skewed"}),
}
"""By name; what it does not say is as in the first."""

FIXED = Workload(2048, "3500", "normal:1500:0.015")
CHAT = Workload(2048, "lognormal:600:1:8000", "lognormal:300:0.8:4000")
PROMPTS = Workload(2048, "lognormal:2000:0.7:8000", "lognormal:200:0.7")


def drawn(workload: Workload, ranks: int, cost: CostModel, blocks: int | None) -> Any:
    """Drawn lengths, with all of 32 slots in use."""
    limits = RankLimits(ranks, 32, 4096, blocks)
    return served(limits, cost, workload, ClientTraffic(max_concurrency=32 * ranks))


def regimes() -> Iterator[Cell]:
    """Windows of traces in each regime, and drawn lengths."""
    for name, regime in REGIMES.items():
        for window in regime.windows:
            for load in regime.loads:
                labels = {"regime": name, "of": window.trace, "first": window.first}
                labels |= {"load": load}
                scenario, rate = regime.scenario(window), window.rate()
                yield Cell(labels, scenario, regime.policies, (0,), load, rate)
    policies, cost = ("adaptive", *RIVALS), USUAL.cost
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
            yield Cell(labels, scenario, policies, (2, 4))


# ---- No barrier

VARIANTS["off, no barrier"] = "off", {"cost": without_barrier(USUAL.cost)}


def barrier() -> Iterator[Cell]:
    """Unseen windows in the first regime, and what the same ranks would do without."""
    regime = USUAL._replace(windows=UNSEEN)
    policies = "off", "adaptive", "off, no barrier"
    for window in regime.windows:
        for load in regime.loads:
            labels = {"of": window.trace, "first": window.first, "load": load}
            scenario, rate = regime.scenario(window), window.rate()
            yield Cell(labels, scenario, policies, (0,), load, rate)


# ---- One rank


def one_rank() -> Iterator[Cell]:
    """Windows of traces by what leaving the graph for a prompt costs, and by slots."""
    loads = None, 0.6, 0.9
    for c in (0.0, 0.034, 0.11):
        for slots in (16, 64, FILLING):
            regime = Regime(1, slots, cost=replace(USUAL.cost, c=c))
            for window in regime.windows:
                for load in loads:
                    labels = {"c": c, "slots": slots, "of": window.trace, "load": load}
                    scenario, rate = regime.scenario(window), window.rate()
                    policies = "adaptive", "off", "eb"
                    yield Cell(labels, scenario, policies, (0,), load, rate)


# ---- Deployments of upstream


class Deployment(NamedTuple):
    """How upstream serves and measures models, by what a scenario depends on."""

    ranks: int
    slots: int
    step_tokens: int
    drafts: int
    asynchronous: bool
    clients: int
    prompts: int
    prompt_len: int
    hits: int
    """Per cent of the prompt that is cached."""
    output_len: int

    def scenario(self, cost: CostModel) -> Scenario:
        """All ranks have what prompts share from the start."""
        rates = ACCEPTANCE[: self.drafts]
        return served(
            RankLimits(
                self.ranks, self.slots, self.step_tokens, acceptance_rates=rates
            ),
            cost,
            Workload(
                self.prompts,
                str(self.prompt_len),
                str(self.output_len),
                prefix_share=self.hits / 100,
                num_prefixes=1,
                prefixes_cached=True,
            ),
            ClientTraffic(max_concurrency=self.clients),
            async_scheduling=self.asynchronous,
        )


DEVICES = {
    "A2": ("a2-dp4-tp4", "a2-dp8-tp4-sparse"),
    "A3, padded": ("a3-dp4-tp4-padded", "a3-dp8-tp4-sparse-padded"),
    "A3": ("a3-dp4-tp4", "a3-dp8-tp4-sparse"),
}
"""Presets of MLA, and of the sparse attention of GLM-5."""


def model(config: str) -> str:
    """The model of a configuration, by its name."""
    name = re.match(r"[A-Za-z]+-?[A-Z]?\d+[._]\d+", config)
    assert name is not None, config
    return name[0].replace("_", ".")


def deployments() -> Iterator[Cell]:
    """What upstream serves with its switch on, once each; deployments.tsv has it."""
    alike: dict[Deployment, list[dict[str, str]]] = {}
    with (FOLDER / "deployments.tsv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            numbers = row | {"asynchronous": row["async"] == "yes"}
            made = Deployment(*(int(numbers[name]) for name in Deployment._fields))
            alike.setdefault(made, []).append(row)
    for device, presets in DEVICES.items():
        for deployment, rows in alike.items():
            models = sorted({model(row["config"]) for row in rows})
            published = [float(x["published"]) for x in rows if x["published"] != "-"]
            labels = {"device": device, "models": models, **deployment._asdict()}
            is_sparse = all(name.startswith("GLM") for name in models)
            scenario = deployment.scenario(PRESETS[presets[is_sparse]])
            labels["published"] = published
            rules = "adaptive", "cap", *RIVALS, "sglang-30"
            yield Cell(labels, scenario, rules, (0, 1, 2))


# ---- What others have published


class Published(NamedTuple):
    """A figure that somebody measured on A3, and what makes the same here."""

    of: str
    figures: Mapping[str, float]
    """As they were published, by name of a figure here."""
    rule: str
    cost: CostModel
    limits: RankLimits
    clients: int
    prompts: int
    prompt_len: int
    output_len: int
    role: str = "both"
    is_fitted: bool = False
    """Whether a constant of the preset is derived from it."""


R1_DRAFTS = 0.82, 0.6, 0.41
"""Of SGLang's three drafts: 1.83 are accepted, as published; of each alone assumed."""
TPOT = "mean_tpot_ms"


def sglang(
    preset: str,
    parallel: int,
    limits: tuple[int, int, int],
    load: tuple[int, int],
    lengths: tuple[int, int],
    *,
    tpot: float,
    rule: str = "off",
    drafts: int = 3,
    **more: Any,
) -> Published:
    """From SGLang's pages on Ascend: DeepSeek-R1.

    Args:
        preset: of the step times.
        parallel: tensor parallel size.
        limits: ranks, slots, tokens of a step.
        load: clients and prompts.
        lengths: prompt and output tokens.
        tpot: as published, in milliseconds.
        rule: what holds prompts.
        drafts: of a request.
        more: of `Published`.
    """
    cost = PRESETS[preset]
    ranks, slots, step = limits
    clients, prompts = load
    prompt_len, output_len = lengths
    if ranks * parallel == 32 and parallel == 2:  # has none of its own
        cost = replace(cost, a=cost.a / 2)
    kind = ", decodes" if "role" in more else f", {rule}"
    name = f"SGLang, DP {ranks} TP {parallel}, {drafts} drafts, {prompt_len:,} → "
    name += f"{output_len:,}, {clients} clients{kind}"
    return Published(
        name,
        {TPOT: tpot, **more.pop("figures", {})},
        rule,
        cost,
        RankLimits(ranks, slots, step, acceptance_rates=R1_DRAFTS[:drafts]),
        clients,
        prompts,
        prompt_len,
        output_len,
        **more,
    )


def afd_plugin(slots: int, prompt_len: int, tpot: float) -> Published:
    """The baseline of vllm-project/afd-plugin."""
    return Published(
        f"afd-plugin's baseline, DeepSeek-V3.2, DP 64 TP 1, {prompt_len:,} tokens of "
        f"{slots} requests a rank, decodes",
        {TPOT: tpot},
        "off",
        PRESETS["a3-dp64-tp1-sparse"],
        RankLimits(64, slots, 4096),
        64 * slots,
        64 * slots,
        prompt_len,
        128,
        is_fitted=True,
        **ALONE,
    )


ALONE: dict[str, Any] = {"role": "decode"}
WHOLE_RUN = {"output_throughput": 2497, "median_ttft_ms": 3900, "p99_ttft_ms": 26_900}
DP4, DP16, DP32 = "a3-dp4-tp4", "a3-dp16-tp1", "a3-dp32-tp1"
WHOLE_PROMPTS = 4, 36, 7144
"""Steps take two of them beside 144 tokens that decode."""
USUAL_LENGTHS = 3500, 1500
PUBLISHED = (
    sglang(
        DP4,
        4,
        WHOLE_PROMPTS,
        (144, 576),
        USUAL_LENGTHS,
        tpot=49.8,
        rule="sglang-30",
        figures=WHOLE_RUN,
    ),
    sglang(DP4, 4, WHOLE_PROMPTS, (144, 288), USUAL_LENGTHS, tpot=29.3, **ALONE),
    sglang(
        DP16, 1, (16, 14, 3556), (224, 896), USUAL_LENGTHS, tpot=50, rule="sglang-200"
    ),
    sglang(
        DP16, 1, (16, 16, 2112), (256, 1024), (2048, 2048), tpot=50, rule="sglang-30"
    ),
    sglang(
        DP16,
        1,
        (16, 24, 4096),
        (320, 640),
        USUAL_LENGTHS,
        tpot=41.9,
        is_fitted=True,
        **ALONE,
    ),
    sglang(
        DP16, 1, (16, 26, 4096), (416, 832), (3584, 1536), tpot=50, drafts=2, **ALONE
    ),
    sglang(
        DP32, 1, (32, 26, 4096), (768, 1536), USUAL_LENGTHS, tpot=50, drafts=2, **ALONE
    ),
    sglang(DP32, 2, (16, 2, 4096), (32, 32), (6000, 1600), tpot=20.5, **ALONE),
    afd_plugin(16, 16_384, 68.8),
    afd_plugin(8, 32_768, 47.6),
)
"""TPOT of 50 and 20.5 ms are in headings; others are of a run that is shown."""


def published() -> Iterator[Cell]:
    """What others have published of A3, and what is simulated of it."""
    for each in PUBLISHED:
        labels = {"of": each.of, "published": each.figures, "fitted": each.is_fitted}
        workload = Workload(each.prompts, str(each.prompt_len), str(each.output_len))
        traffic = ClientTraffic(max_concurrency=each.clients)
        scenario = served(each.limits, each.cost, workload, traffic, role=each.role)
        rules = [each.rule] if each.role == "decode" else [each.rule, "off", "adaptive"]
        yield Cell(labels, scenario, rules)


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


def of_agents(per_rank: int, shared: int = 0, **more: Any) -> Scenario:
    """So many sessions of AgentX at a time for each of 8 ranks with 1 M tokens each.

    Nothing was chosen on these sessions. `shared` are tokens that all prompts have.
    """
    sessions = per_rank * 8
    blocks = None if more.get("role") == "decode" else 1_000_000 // BLOCK_SIZE
    workload = Workload(
        21 * sessions,
        trace=TRACES / "agentx" / "held_out.jsonl",
        session_shared=shared,
        session_turns=16,
    )
    traffic = ClientTraffic(max_concurrency=sessions)
    limits, cost = RankLimits(8, 16, 8192, blocks), PRESETS["a3-dp4-tp4"]
    return served(limits, cost, workload, traffic, **more)


def agents() -> Iterator[Cell]:
    """Sessions by number, and with what all share; then the instances of one role."""
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
        regime = Regime(ranks, 48, cost=PRESETS[preset], more={"role": role})
        for load in (0.5, 0.9):
            labels = {"role": role, "of": window.trace, "ranks": ranks, "load": load}
            scenario, rate = regime.scenario(window), window.rate()
            yield Cell(labels, scenario, ON_ROLES, (0,), load, rate)
    for role in ("prefill", "decode"):
        labels = {"role": role, "of": "agents", "ranks": 8, "load": 32}
        yield Cell(labels, of_agents(4, role=role), ON_ROLES)


GRIDS: dict[str, Callable[[], Iterator[Cell]]] = {
    "regimes": regimes,
    "barrier": barrier,
    "one_rank": one_rank,
    "deployments": deployments,
    "published": published,
    "agents": agents,
}
"""By the name of the result."""
