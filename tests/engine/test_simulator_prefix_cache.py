"""Shared prompts in a KV cache that is full: the modelled ranks do what vLLM does.

Steps and rows are those of real schedulers with real gates. In most cases blocks are
evicted, hit while in use and revived, and requests preempted and held, in one run.
"""

import inspect
import random
from dataclasses import dataclass, replace

import pytest
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.scenario import Workload
from vllm.v1.core.block_pool import BlockPool

from test_simulator_identity import POLICIES, assert_same, limited, speculating

pytestmark = pytest.mark.skipif(
    "prepend" not in inspect.signature(BlockPool.free_blocks).parameters,
    reason="0.30 and later take blocks of which nothing is cached first",
)

CASES = 4 * len(POLICIES)
CROWDED = (8, 44, 50, 66)
"""In these the gate looks up more requests than it does at a time."""


@dataclass(frozen=True)
class Texts(Workload):
    """Prompts that are beginnings of some texts, with equal chunks after others."""

    chunk_size: int = 16

    def requests(self, rng, count_tokens=None):
        requests = super().requests(rng, count_tokens)
        for request in requests:
            text = rng.randrange(self.num_prefixes)
            request.chunk_size = self.chunk_size
            request.hash_ids = tuple(
                1000 * (text + 1) + chunk if chunk % 3 == 1 else chunk
                for chunk in range(-(-request.prompt_len // self.chunk_size))
            )
        return requests


def sharing(case):
    """As `limited`, with prompts that share beginnings."""
    scenario, policy = limited(case)
    rng = random.Random(f"sharing {case}")
    slots = rng.choice([4, 8, 16, 40])
    limits = replace(
        scenario.limits,
        max_num_seqs=slots,
        max_num_batched_tokens=max(slots, rng.choice([16, 64, 256, 1024])),
        kv_blocks=rng.choice([40, 60, 90]),
    )
    workload = replace(
        scenario.workload,
        num_prompts=rng.choice([60, 120]),
        input_len=rng.choice(
            ["40", "48", "uniform:10:60", "uniform:1:300", "lognormal:80:1:400"]
        ),
        num_prefixes=rng.choice([1, 3, 8, 20]),
    )
    if case % 2:
        workload = replace(workload, prefix_share=rng.choice([0.3, 0.6, 0.9]))
    else:
        values = {name: getattr(workload, name) for name in workload.__match_args__}
        workload = Texts(**values, chunk_size=rng.choice([7, 16, 16, 24, 64, 512]))
    traffic = rng.choice(
        [scenario.traffic, ClientTraffic(max_concurrency=3 * slots * limits.ranks)]
    )
    return replace(scenario, limits=limits, workload=workload, traffic=traffic), policy


def crowded(case):
    """As `sharing`, with more requests that wait than are looked up at a time."""
    scenario, policy = sharing(case)
    sizes = {"max_num_seqs": 50, "max_num_batched_tokens": 64, "kv_blocks": 120}
    limits = replace(scenario.limits, ranks=2, **sizes)
    prompts = {"num_prompts": 150, "input_len": "uniform:10:60", "num_prefixes": 8}
    workload = replace(scenario.workload, chunk_size=16, **prompts)
    traffic = ClientTraffic(max_concurrency=150)
    return replace(scenario, limits=limits, workload=workload, traffic=traffic), policy


def drafted(case):
    scenario, policy = sharing(case)
    return speculating(scenario, case // 2), policy


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        *((sharing, case) for case in range(CASES)),
        *((drafted, case) for case in range(0, CASES, 2)),
        *((crowded, case) for case in CROWDED),
    ],
)
def test_same_steps_and_rows(kind, case, monkeypatch):
    assert_same(*kind(case), case, monkeypatch)
