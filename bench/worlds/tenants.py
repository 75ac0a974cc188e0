"""Two tenants share the ranks: does a policy slow one of them down?

As a program, prints which one: `python bench/worlds/tenants.py --seeds 0..300`.
"""

import argparse
import random
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT)]

from tqdm import tqdm

from vllm_balance.simulator.metrics import percentile
from vllm_balance.simulator.requests.arrivals import ClientTraffic
from vllm_balance.simulator.requests.request import SimRequest
from vllm_balance.simulator.requests.workload import parse_lengths
from vllm_balance.simulator.scenario import RankLimits, Scenario, simulate
from vllm_balance.simulator.step_time.model import CostModel
from vllm_balance.simulator.step_time.presets import PRESETS

MEAN, TAIL, TAIL_SECONDS = 1.1, 2.0, 2.0
"""Limits over those of off: factors of a tenant's mean latency and p99 TTFT, and
seconds that are added to the latter."""
SECONDS, MOST = 300, 8000
"""How long the tenants send, and the largest number of requests of one."""
PROMPTS = (
    "1",
    "16",
    "200",
    "2000",
    "8000",
    "32000",
    "uniform:1:20",
    "lognormal:2000:0.8:60000",
    "lognormal:160:1:60000",
)
ANSWERS = "1", "2", "50", "1000", "lognormal:160:1:4000"
OTHERS = "lognormal:2000:0.8:60000", "lognormal:180:0.6:2000"


class Tenant(NamedTuple):
    """A sender of requests, with its lengths of prompts and answers."""

    prompt: str
    answer: str
    load: float
    """Share of what the ranks can do."""
    burst: float = 0.0
    """Seconds between two bursts; 0 for no bursts."""
    duty: float = 1.0
    """Share of each minute in which requests come."""

    def requests(self, rng, limits, cost):
        """By request its time, and the tokens of prompt and answer."""
        prompt, answer = (parse_lengths("", text) for text in self[:2])
        drawn = [(prompt(rng), answer(rng)) for _ in range(200)]
        seconds = statistics.fmean(
            p * cost.b + p * p / 2 * cost.attention + a * cost.t0 / limits.max_num_seqs
            for p, a in drawn
        )
        rate = min(400.0, self.load * limits.ranks / seconds)
        requests, now = [], 0.0
        while (now := now + rng.expovariate(rate)) < SECONDS and len(requests) < MOST:
            if now % 60 < 60 * self.duty:
                due = now - now % self.burst + rng.random() / 1e3 if self.burst else now
                requests.append((due, prompt(rng), answer(rng)))
        return requests


@dataclass(frozen=True)
class World:
    """Ranks, and the two tenants that send to them."""

    limits: RankLimits
    cost: CostModel
    others: Tenant
    tenant: Tenant


TINY = World(
    RankLimits(2, 256, 2048),
    replace(PRESETS["a2-dp16-tp1"], a=60e-6, c=0.0),
    Tenant(*OTHERS, load=0.1),
    Tenant("uniform:1:20", "lognormal:160:1:4000", load=0.2, burst=40.0),
)
"""One tenant sends bursts of tiny prompts with long answers. With `a` and `c` of
the preset the median of the others is 2.5 times that of off, and their mean 1.08."""


def draw(seed):
    """Draws ranks and a tenant."""
    rng = random.Random(f"tenants {seed}")
    limits = RankLimits(
        rng.choice([2, 4, 8]),
        rng.choice([8, 32, 128, 256]),
        rng.choice([2048, 8192]),
        kv_blocks=rng.choice([None, None, 6000, 20000]),
    )
    tenant = Tenant(
        rng.choice(PROMPTS),
        rng.choice(ANSWERS),
        rng.choice([0.05, 0.2, 0.5]),
        rng.choice([0, 0, 2, 10, 40]),
        rng.choice([1, 1, 0.3]),
    )
    others = Tenant(*OTHERS, load=rng.choice([0.1, 0.3, 0.5]))
    return World(limits, PRESETS[rng.choice(list(PRESETS))], others, tenant)


class Sent:
    """The requests of both, in place of a workload, as `others` and `tenant`."""

    def __init__(self, world, seed):
        rows = [
            (*row, who)
            for who in ("others", "tenant")
            for row in getattr(world, who).requests(
                random.Random(f"{who} {seed}"), world.limits, world.cost
            )
        ]
        self.rows = sorted(rows)
        self.num_prompts = len(rows)

    def requests(self, rng, count_tokens=None):
        """Returns the requests, as `Workload.requests` does."""
        return [
            SimRequest(number, prompt, answer, due=due)
            for number, (due, prompt, answer, _) in enumerate(self.rows)
        ]


class TenantTimes(NamedTuple):
    """The latencies of a tenant, in seconds."""

    mean: float
    """Mean end-to-end time."""
    median: float
    """Median time to first token."""
    tail: float
    """p99 of the time to first token."""
    count: int


def serve(world, policy, seed=0):
    """The latencies of each tenant, and of all requests."""
    sent = Sent(world, seed)
    scenario = Scenario(
        world.limits,
        world.cost,
        workload=sent,
        traffic=ClientTraffic(self_timed=True),
    )
    run = simulate(scenario, policy, seed)
    served = list(zip(run.requests, sent.rows, strict=True))
    times = {}
    for who in ("others", "tenant", "all"):
        requests = [request for request, row in served if who in (row[-1], "all")]
        waits = sorted(request.first_token - request.sent for request in requests)
        if requests:
            mean = statistics.fmean(request.done - request.sent for request in requests)
            tails = (percentile(waits, share) for share in (0.5, 0.99))
            times[who] = TenantTimes(mean, *tails, len(requests))
    return times


def who_pays(off, policy):
    """The tenants whose latency is beyond the limits."""
    return [
        who
        for who in off
        if who != "all"
        and (
            policy[who].mean > MEAN * off[who].mean
            or policy[who].tail > TAIL * off[who].tail + TAIL_SECONDS
        )
    ]


def judge(seed, policy="adaptive"):
    """The tenants that are slowed down in a random world."""
    world = draw(seed)
    return who_pays(serve(world, "off", seed), serve(world, policy, seed))


def main(arguments=None, show=tqdm.write):
    """Prints the tenants that are slowed down."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", default="0..100", help="FIRST..END")
    parser.add_argument("--policy", default="adaptive")
    args = parser.parse_args(arguments)
    first, _, end = args.seeds.partition("..")
    paid = dict.fromkeys(("others", "tenant"), 0)
    seeds = range(int(first), int(end))
    for seed in tqdm(seeds, disable=None):
        world = draw(seed)
        off, policy = (serve(world, name, seed) for name in ("off", args.policy))
        for who in who_pays(off, policy):
            paid[who] += 1
            a, b = off[who], policy[who]
            show(
                f"{seed}: {who}, mean {a.mean:.2f} → {b.mean:.2f}, TTFT p99 "
                f"{a.tail:.2f} → {b.tail:.2f} s; {world.tenant}"
            )
    print(f"In {len(seeds)} worlds with {args.policy} pay: {paid}")


if __name__ == "__main__":
    main()
