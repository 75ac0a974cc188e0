"""Two tenants share the ranks: does a policy make one pay for the other?

As a program, prints who pays: `python bench/worlds/tenants.py --seeds 0..300`.
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
"""A tenant's mean end-to-end time, and p99 of TTFT, against those of off: factors, and
seconds that are added to the second."""
SECONDS, MOST = 300, 8000
"""For which they send, and requests of both."""
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
    """Who sends requests of such prompts and answers."""

    prompt: str
    answer: str
    load: float
    """Share of what the ranks can do."""
    burst: float = 0.0
    """Seconds between which nothing comes."""
    duty: float = 1.0
    """Share of each minute in which any comes."""

    def requests(self, rng, limits, cost):
        """When they come, and tokens of prompts and answers."""
        prompt, answer = (parse_lengths("", text) for text in self[:2])
        drawn = [(prompt(rng), answer(rng)) for _ in range(200)]
        seconds = statistics.fmean(
            p * cost.b + p * p / 2 * cost.attention + a * cost.t0 / limits.max_num_seqs
            for p, a in drawn
        )
        rate = min(400.0, self.load * limits.ranks / seconds)
        found, now = [], 0.0
        while (now := now + rng.expovariate(rate)) < SECONDS and len(found) < MOST:
            if now % 60 < 60 * self.duty:
                due = now - now % self.burst + rng.random() / 1e3 if self.burst else now
                found.append((due, prompt(rng), answer(rng)))
        return found


@dataclass(frozen=True)
class World:
    """Ranks, and two who send to them."""

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
"""One sends many tiny requests at a time, whose answers take long. With `a` and `c` of
the preset the median of the others is 2.5 times that of off, and their mean 1.08."""


def draw(seed):
    """Ranks and a tenant at random."""
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
        """As `Workload.requests`."""
        return [
            SimRequest(number, prompt, answer, due=due)
            for number, (due, prompt, answer, _) in enumerate(self.rows)
        ]


class TenantTimes(NamedTuple):
    """Of one tenant, in seconds."""

    mean: float
    """End-to-end time."""
    median: float
    """Time to first token."""
    tail: float
    """The same, p99."""
    count: int


def serve(world, policy, seed=0):
    """The figures of each, and of all."""
    sent = Sent(world, seed)
    scenario = Scenario(
        world.limits,
        world.cost,
        workload=sent,
        traffic=ClientTraffic(self_timed=True),
    )
    run = simulate(scenario, policy, seed)
    served = list(zip(run.requests, sent.rows, strict=True))
    found = {}
    for who in ("others", "tenant", "all"):
        of = [each for each, row in served if who in (row[-1], "all")]
        waits = sorted(each.first_token - each.sent for each in of)
        if of:
            mean = statistics.fmean(each.done - each.sent for each in of)
            tails = (percentile(waits, share) for share in (0.5, 0.99))
            found[who] = TenantTimes(mean, *tails, len(of))
    return found


def who_pays(off, policy):
    """Who is served worse than may be."""
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
    """Who pays in a random world."""
    world = draw(seed)
    return who_pays(serve(world, "off", seed), serve(world, policy, seed))


def main(arguments=None, show=tqdm.write):
    """Prints who pays."""
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
