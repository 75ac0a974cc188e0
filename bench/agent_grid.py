"""What is simulated of agents: sessions of AgentX on KV caches of several sizes."""

from collections.abc import Iterator

from grids import BY_TOKENS, RANKS, STEP, TRACES, WITH_VLLM_DISPATCH, Cell
from vllm.benchmarks.dp_balance.front_end.load_balancers import AS_SERVED
from vllm.benchmarks.dp_balance.rank.limits import BLOCK_SIZE, RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload
from vllm.benchmarks.dp_balance.step_time.presets import PRESETS

RIVALS = (
    *("align, sessions kept", "sglang23-30, sessions kept", "trtllm, its router"),
    "trtllm, its router and chunks",
)
ON_AGENTS = (
    *("adaptive", BY_TOKENS, WITH_VLLM_DISPATCH, "adaptive, perfect knowledge", "off"),
    *RIVALS,
)


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
        few = ("adaptive", BY_TOKENS, "off")
        yield on_agents(ranks, 4, 1_000_000, policies=few)
