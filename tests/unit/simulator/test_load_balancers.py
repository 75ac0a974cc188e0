"""Load balancers, and when they learn what."""

import json
import random

from rivals.routers import ROUTERS
from vllm_balance.simulator.front_end.backends import Backends
from vllm_balance.simulator.front_end.load_balancers import LOAD_BALANCERS
from vllm_balance.simulator.rank.limits import RankLimits
from vllm_balance.simulator.requests.arrivals import ClientTraffic
from vllm_balance.simulator.requests.request import SimRequest
from vllm_balance.simulator.requests.traces import TimedTrace
from vllm_balance.simulator.requests.workload import Workload
from vllm_balance.simulator.scenario import Scenario, simulate
from vllm_balance.simulator.step_time.presets import PRESETS


def sessions(folder):
    """A trace of 12 sessions whose prompts grow, in blocks of 64 tokens."""
    rows = []
    for turn in range(8):
        for session in range(12):
            blocks, when = 64 + 16 * turn, 40 * ((5 * session + turn) % 12)
            row = {"timestamp": 5000 * turn + when, "input_length": 64 * blocks}
            row["hash_ids"] = [1000 * session + block for block in range(blocks)]
            rows.append(row | {"output_length": 5})
    rows.sort(key=lambda row: row["timestamp"])
    (path := folder / "trace.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    timed = TimedTrace(chunk_hash_size=64, sec_multiplier=1e-3)
    return Workload(len(rows), trace=path, timed_trace=timed)


def computed(workload, load_balancer, **limits):
    """Prompt tokens that were computed, and when the last request ended."""
    scenario = Scenario(
        RankLimits(4, 8, 2048, **limits),
        PRESETS["a3-dp4-tp4"],
        workload,
        ClientTraffic(self_timed=True),
        load_balancer=load_balancer,
    )
    tokens: list[int] = []
    done = simulate(
        scenario,
        "adaptive",
        routers={**LOAD_BALANCERS, **ROUTERS},
        on_step=lambda step: tokens.extend(step.loads.prefill),
    )
    return sum(tokens), max(request.done for request in done.requests)


def test_sessions_stay_with_their_prefix(tmp_path):
    """Also where KV caches hold a third of it; as early as if one looked into them."""
    workload = sessions(tmp_path)
    roomy = [computed(workload, name)[0] for name in ("prefix-aware", "tokens")]
    assert roomy[0] < 0.6 * roomy[1]
    names = ("tokens", "prefix-aware", "as-served", "trtllm-kv-aware")
    found = {name: computed(workload, name, kv_blocks=1500) for name in names}
    assert found["as-served"] == found["prefix-aware"]
    for name in ("prefix-aware", "trtllm-kv-aware"):
        assert found[name][0] < 0.6 * found["tokens"][0], name
    assert found["prefix-aware"][1] <= 1.02 * found["trtllm-kv-aware"][1]


def test_by_context_the_answer_that_has_passed_counts():
    passed = {"output_tokens": lambda sent: 5000 * (sent.index == 0)}
    backends = Backends(2, random.Random(0), slots=8, **passed)
    (tested,) = LOAD_BALANCERS["context"](backends)
    short, long = SimRequest(0, 10, 9000), SimRequest(1, 4000, 9)
    short.rank, long.rank = tested.choose(short), tested.choose(long)
    assert (short.rank, long.rank) == (0, 1)
    assert tested.choose(SimRequest(2, 1, 1)) == 1
