"""Worlds that are not kind to a policy, by seed, and what must hold in every one.

A world is a plain device with plain requests, and troubles on top; `draw` composes one
at random. As a program, it judges a policy in many worlds and prints where it harms:
`python tests/unit/helpers/hostile.py --seeds 0..1000`.
"""

import argparse
import copy
import math
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pure_vllm  # noqa: F401  before vllm

# isort: split
from tqdm import tqdm
from vllm.benchmarks.dp_balance.front_end.api_servers import Dispatcher
from vllm.benchmarks.dp_balance.front_end.load_balancers import (
    BY_TOKENS,
    BlindBalancer,
    load_balancer_of,
    make_load_balancers,
)
from vllm.benchmarks.dp_balance.loop import StepRecord, run
from vllm.benchmarks.dp_balance.metrics import percentile
from vllm.benchmarks.dp_balance.policies import make_controller
from vllm.benchmarks.dp_balance.rank.engine import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic, Frontend
from vllm.benchmarks.dp_balance.requests.workload import SimRequest, parse_lengths
from vllm.benchmarks.dp_balance.scenario import Scenario, make_engine
from vllm.benchmarks.dp_balance.step_time.model import CostModel, Loads
from vllm.v1.core.sched.balance.policies.rows import Snapshot

MEAN, TAIL, TAIL_SECONDS = 1.02, 2.0, 2.0
"""Mean end-to-end time, and p99 of TTFT, against those of off: factors, and seconds
that are added to the second."""
COSTS, COST_STEPS = 3.0, 0.5
"""Learned costs against what is true: a factor, and decode steps that are added."""
RECENT, KNOWN = 200, 20
"""Steps over which costs are judged; and how many of them must prefill, and how many
must not, for costs to be known."""
AGAIN = 4
"""Runs more, with other noise, before a world counts as harm."""


class Phase(NamedTuple):
    """Requests that come by a Poisson process for a while."""

    seconds: float
    rate: float
    """Requests per second; 0 for silence."""
    prompt: str = "lognormal:1500:0.8:16000"
    output: str = "lognormal:100:0.8:1500"


def steady(now: float) -> float:
    return 1.0


@dataclass
class World:
    """Everything but the policy and the noise."""

    seed: int
    troubles: tuple[str, ...]
    limits: RankLimits
    cost: CostModel
    phases: list[Phase]
    first_decode: float = 0.0
    """Seconds that the first step without prefill takes longer."""
    speed: Callable[[float], float] = steady
    """Factor of every step, by virtual seconds."""
    decode_speed: Callable[[float], float] = steady
    """The same of what a step takes without its prefill."""
    slow_rank: float = 1.0
    """Factor of the work of the last rank."""
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """When, and for how many seconds, some rank stops, and so all."""
    outliers: float = 1.0
    """Factor of one step in a hundred."""
    equal: bool = False
    """Whether every request comes once for each rank."""
    bursts: float = 0.0
    """Seconds between bursts in which requests come."""
    tiny: str | None = None
    """Prompts of a tenant who sends half of the requests, with two-token answers."""
    balancer: str = "0.23"
    api_servers: int = 1
    asynchronous: bool = False
    concurrency: int | None = None

    @property
    def name(self) -> str:
        return f"{self.seed}:{'+'.join(self.troubles)}"

    def requests(self) -> list[SimRequest]:
        rng, found, start = random.Random(f"requests {self.seed}"), [], 0.0
        for phase in self.phases:
            prompt, output = (
                parse_lengths("", text) for text in (phase.prompt, phase.output)
            )
            now = start
            start += phase.seconds
            while phase.rate and (now := now + rng.expovariate(phase.rate)) < start:
                lengths = prompt(rng), output(rng)
                if self.tiny and rng.random() < 0.5:
                    lengths = parse_lengths("", self.tiny)(rng), rng.choice([1, 2])
                due = now - now % self.bursts if self.bursts else now
                for _ in range(self.limits.ranks if self.equal else 1):
                    found.append(SimRequest(len(found), *lengths))
                    found[-1].due = 0.0 if self.concurrency else due
        return found


def hostile_device(world: World, rng: random.Random, trouble: str) -> None:
    """Sets one of `DEVICE`."""
    horizon = sum(phase.seconds for phase in world.phases)
    at = rng.uniform(0.1, 0.6) * horizon
    if trouble == "first_decode":
        world.first_decode = rng.uniform(2, 3)
    elif trouble == "drift":
        minutes = rng.uniform(20, 300)
        world.speed = lambda now: 1 + 0.5 * min(1.0, max(0.0, (now - at) / minutes))
    elif trouble == "modes":
        period, slow = rng.uniform(5, 60), rng.uniform(1.5, 3)
        world.decode_speed = lambda now: slow if now // period % 2 else 1.0
    elif trouble == "faster":
        factor = rng.uniform(0.3, 0.7)
        world.decode_speed = lambda now: factor if now > at else 1.0
    elif trouble == "pauses":
        times = [rng.random() * horizon for _ in range(rng.randint(1, 3))]
        world.pauses = [(time, 2 * 30 ** rng.random()) for time in sorted(times)]
    elif trouble == "slow_rank":
        world.slow_rank = rng.uniform(1.3, 3)
    elif trouble == "outliers":
        world.outliers = rng.uniform(5, 50)
    elif trouble == "batch":  # decodes, by how many there are and by their context
        world.cost = replace(world.cost, a=1e-3, context=1e-6)
    elif trouble == "experts":
        world.cost = replace(world.cost, experts=0.03)
    elif trouble == "attention":
        world.cost = replace(world.cost, attention=world.cost.b / 5000)
    elif trouble == "padded":
        world.cost = replace(world.cost, padded=1.0)
    elif trouble == "noise":
        world.cost = replace(world.cost, noise=0.4)


def hostile_requests(world: World, rng: random.Random, trouble: str) -> None:
    """Sets one of `REQUESTS`."""
    day = world.phases[0]
    long = replace_all(world.phases, prompt="100000", output="lognormal:50:0.5:400")
    if trouble == "night":
        night = day._replace(rate=day.rate / 16, seconds=rng.uniform(60, 240))
        world.phases = [night, *world.phases, night, *world.phases]
    elif trouble == "long_prompts":
        short = replace_all(world.phases, prompt="100")
        world.phases = [*short, *(p._replace(rate=p.rate / 50) for p in long)]
    elif trouble == "tiny":
        world.tiny = rng.choice(["uniform:1:20", "1500"])
    elif trouble == "short_answers":
        world.phases = replace_all(world.phases, output="2")
    elif trouble == "lone":
        few = day._replace(seconds=30, rate=0.5, prompt="4000", output="600")
        silence = day._replace(rate=0.0, seconds=rng.choice([5, 900]))
        world.phases = [*replace_all(world.phases, output="2"), silence, few]
    elif trouble == "bursts":
        world.bursts = rng.uniform(2, 20)
    elif trouble == "equal":
        slower = 1 / world.limits.ranks
        world.phases = [p._replace(rate=p.rate * slower) for p in world.phases]
        world.equal, world.balancer = True, "round-robin"
    elif trouble == "closed":
        world.concurrency = world.limits.ranks * rng.choice([1, 8, 40])
    elif trouble in ("pinned", "starved", "as-served", "0.30"):
        world.balancer = trouble
    elif trouble == "two_servers":
        world.api_servers = 2
    elif trouble == "async":
        world.asynchronous = True
    elif trouble == "one_seq":
        world.limits = replace(world.limits, max_num_seqs=1)
        world.phases = [p._replace(rate=p.rate / 8) for p in world.phases]
    elif trouble == "kv_full":
        longest = max(r.prompt_len + r.output_len for r in world.requests())
        world.limits = replace(world.limits, kv_blocks=longest // 16 + 2 + 500)
    elif trouble == "review":  # quiet with slow decodes, faster, then many requests
        world.cost = CostModel(0.03, 1e-3, 2e-4, 0.0, noise=0.03)
        world.decode_speed = lambda t: 2.0 if t < 360 else 1.0 if t < 960 else 4 / 3
        lengths = ("lognormal:600:0.8", "lognormal:200:0.8")
        quiet, busy = Phase(960, 0.5, *lengths), Phase(90, 8, *lengths)
        world.phases, world.limits = [quiet, busy], RankLimits(8, 256, 8192)


def replace_all(phases: Sequence[Phase], **fields: str) -> list[Phase]:
    return [phase._replace(**fields) for phase in phases]


DEVICE = (
    "first_decode drift modes faster pauses slow_rank outliers batch experts attention "
    "padded noise"
)
REQUESTS = (
    "review equal night long_prompts short_answers lone closed bursts tiny pinned "
    "starved as-served 0.30 two_servers async one_seq kv_full"
)
ALL = [*REQUESTS.split(), *DEVICE.split()]


def make(troubles: Sequence[str], seed: int = 0) -> World:
    """The world with these troubles; what else there is to choose is drawn."""
    rng = random.Random(f"world {seed}")
    ranks, slots = rng.choice([2, 2, 4, 8, 8, 16]), rng.choice([8, 32, 128])
    t0, b = rng.uniform(0.02, 0.06), 10 ** rng.uniform(-4.5, -3.5)
    c, phi = rng.choice([0.0, 0.5, 1.0]) * t0, rng.choice([0.0, 0.0, 0.3, 0.6])
    cost = CostModel(t0, 2e-4, b, c, 6e-8, phi=phi, noise=0.06)
    load = rng.choice([0.05, 0.3, 0.6, 0.9, 1.2])
    rate = load * ranks / (2000 * b + 140 * t0 * max(1 / slots, 0.02))
    seconds = min(150.0, 200 / rate)
    limits = RankLimits(ranks, slots, rng.choice([2048, 8192]))
    world = World(seed, tuple(troubles), limits, cost, [Phase(seconds, rate)])
    for trouble in sorted(set(troubles), key=ALL.index):
        kind = hostile_requests if trouble in REQUESTS.split() else hostile_device
        kind(world, rng, trouble)
    return world


def parse(name: str) -> World:
    """The world of a name, as `World.name` gives it."""
    seed, _, troubles = name.partition(":")
    return make([trouble for trouble in troubles.split("+") if trouble], int(seed))


def draw(seed: int) -> World:
    """A random world: one to five troubles."""
    rng = random.Random(f"draw {seed}")
    known = [trouble for trouble in ALL if trouble != "review"]
    return make(rng.sample(known, rng.randint(1, 5)), seed)


class Step(NamedTuple):
    """What is true of a step, in seconds without noise, and its load."""

    prefill: Sequence[int]
    decode_seconds: float
    prefill_seconds: float


class Device:
    """The device of a world, in place of `CostModel`: its times depend on the time."""

    noise = 0.0

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._pauses = list(world.pauses)
        self._first = world.first_decode
        self.now = 0.0
        self.recent: deque[Step] = deque(maxlen=RECENT)

    def step_seconds(self, loads: Loads) -> float:
        """How long the step takes that starts now."""
        world, slow = self._world, self._world.slow_rank
        if slow != 1:
            loads = Loads(*([*column[:-1], column[-1] * slow] for column in loads))
        whole = world.cost.step_seconds(loads)
        nothing = [0] * len(loads.prefill)
        decode = world.cost.step_seconds(loads._replace(prefill=nothing))
        prefill = (whole - decode) * world.speed(self.now)
        decode *= world.speed(self.now) * world.decode_speed(self.now)
        self.recent.append(Step(loads.prefill, decode, prefill))
        seconds = world.cost.noisy(decode + prefill, self._rng)
        if self._rng.random() < 0.01:
            seconds *= world.outliers
        if not prefill:
            seconds, self._first = seconds + self._first, 0.0
        while self._pauses and self._pauses[0][0] <= self.now:
            seconds += self._pauses.pop(0)[1]
        return seconds


class Clock(Dispatcher):
    """Dispatches, and tells the device what time it is."""

    device: Device

    def tell(self, now: float, *args) -> None:
        self.device.now = now
        super().tell(now, *args)


class Copies:
    """The policy as ranks have it: each its own, shown equal snapshots."""

    def __init__(self, policy: str) -> None:
        self.copies = [make_controller(policy) for _ in range(2)]

    def decide(self, snapshot: Snapshot):
        decisions = [c.decide(Snapshot(*snapshot)) for c in self.copies]
        assert decisions[0] == decisions[1], f"copies disagree: {decisions}"
        cost = self.cost
        assert cost is None or all(map(math.isfinite, cost)), cost
        return decisions[0]

    def reset(self) -> None:
        """A wave has ended; whoever joins now gets all that is known from another."""
        for each in self.copies:
            each.reset()
        self.copies[1] = copy.deepcopy(self.copies[0])

    @property
    def cost(self):
        """What the policy has learned; None if it learns nothing."""
        learner = getattr(getattr(self.copies[0], "_policy", None), "_learner", None)
        return learner and learner.cost


class Figures(NamedTuple):
    """What came out, in seconds."""

    mean: float
    """End-to-end time."""
    tail: float
    """p99 of the time to first token."""
    end: float
    costs: str
    """What is wrong with the learned costs, if anything."""


def wrong_costs(cost, steps: Sequence[Step], largest: int) -> str:
    """What is wrong with learned costs, beside the recent steps."""
    prefills = [step for step in steps if any(step.prefill)]
    if cost is None or not KNOWN <= len(prefills) <= len(steps) - KNOWN:
        return ""
    true = statistics.fmean(step.decode_seconds for step in steps)
    found = []
    if not true / COSTS <= cost.decode <= true * COSTS:
        found.append(f"decode {cost.decode:.3g}, true {true:.3g}")
    learned = statistics.fmean(
        cost.prefill_seconds(
            max(step.prefill) / largest,
            statistics.fmean(step.prefill) / largest,
            step.prefill.count(0) / len(step.prefill),
        )
        for step in prefills
    )
    excess = statistics.fmean(step.prefill_seconds for step in prefills)
    room = COST_STEPS * true
    if not excess / COSTS - room <= learned <= excess * COSTS + room:
        found.append(f"prefill {learned:.3g}, true {excess:.3g}")
    return "; ".join(found)


def serve(world: World, policy: str, noise: int = 0, until: float = math.inf):
    """The figures of a policy in a world.

    Raises:
        AssertionError: copies disagree, costs are not finite, or it takes too long.
    """
    requests = world.requests()
    limits, ranks = world.limits, world.limits.ranks
    device = Device(world, random.Random(f"device {world.seed} {noise}"))
    copies = None if policy == "off" else Copies(policy)
    scenario = Scenario(limits, world.cost, async_scheduling=world.asynchronous)
    rng = random.Random(f"routing {world.seed} {noise}")
    balancer = load_balancer_of(world.balancer, policy)
    if balancer in ("pinned", "starved"):
        pinned = balancer == "pinned"
        blind = BlindBalancer(lambda: 0 if pinned else rng.randrange(1, ranks))
        balancers = [blind] * world.api_servers
    else:
        balancers = make_load_balancers(
            balancer, ranks, rng, 0.5, world.api_servers, limits.max_num_seqs
        )
    clock = Clock(ranks, balancers, balancer == BY_TOKENS)
    clock.device = device

    def watch(step: StepRecord) -> None:
        assert step.end < until, f"not done after {step.end:.0f} s"

    done = run(
        make_engine(scenario, requests, None),
        copies,
        requests,
        ClientTraffic(world.concurrency, self_timed=True),
        clock,
        device,
        rng,
        frontend=Frontend(api_servers=world.api_servers),
        async_scheduling=world.asynchronous,
        on_step=watch,
    )
    wrong = copies and wrong_costs(
        copies.cost, device.recent, limits.max_num_batched_tokens
    )
    return Figures(
        statistics.fmean(r.done - r.sent for r in requests),
        percentile(sorted(r.first_token - r.sent for r in requests), 0.99),
        done.steps[-1].end,
        wrong or "",
    )


class Verdict(NamedTuple):
    """A policy beside off, in a world."""

    world: World
    off: Figures
    policy: Figures | None
    """None if it did not come to an end."""
    harm: str
    """Empty if there is none."""


def harms(offs: Sequence[Figures], policies: Sequence[Figures]) -> list[str]:
    """What is worse than may be, and than twice the standard error of off's noise.

    Noise of the policy's own is no excuse: off would have had none of it.
    """
    found = []
    for what, factor, more in (("mean", MEAN, 0.0), ("tail", TAIL, TAIL_SECONDS)):
        before = [getattr(off, what) for off in offs]
        after = statistics.fmean(getattr(policy, what) for policy in policies)
        spread = statistics.stdev(before) * math.sqrt(2) if before[1:] else 0.0
        allowance = 2 * spread / math.sqrt(len(before))
        if after > factor * statistics.fmean(before) + more + allowance:
            found.append(what)
    return found


def judge(world: World, policy: str) -> Verdict:
    """Runs a policy beside off; again with other noise before it finds harm."""
    offs = [serve(world, "off")]
    until = 20 * offs[0].end + 600
    found = None
    try:
        policies = [found := serve(world, policy, until=until)]
        harm = harms(offs, policies) if policy == "adaptive" else []
        if harm:
            for noise in range(1, 1 + AGAIN):
                offs.append(serve(world, "off", noise))
                policies.append(serve(world, policy, noise, until))
            harm = harms(offs, policies)
        wrong = [found.costs] if found.costs else []
        return Verdict(world, offs[0], found, ", ".join(harm + wrong))
    except Exception as error:
        harm = f"{type(error).__name__}: {error}"
        return Verdict(world, offs[0], found, harm)


def main() -> None:
    """Prints the worlds in which a policy harms."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", default="0..100", help="FIRST..END")
    parser.add_argument("--policy", default="adaptive")
    parser.add_argument("worlds", nargs="*", help="SEED:TROUBLE+TROUBLE, instead")
    args = parser.parse_args()
    first, _, end = args.seeds.partition("..")
    worlds = [parse(name) for name in args.worlds]
    worlds = worlds or [draw(seed) for seed in range(int(first), int(end))]
    harmed = 0
    tqdm.write("world | mean off → policy | factor | TTFT p99 off → policy | harm")
    for world in tqdm(worlds, disable=None):
        off, policy, harm = judge(world, args.policy)[1:]
        harmed += bool(harm)
        if harm or args.worlds:
            mean, tail = (policy.mean, policy.tail) if policy else (math.nan, math.nan)
            tqdm.write(
                f"{world.name} | {off.mean:.2f} → {mean:.2f} | {mean / off.mean:.2f} "
                f"| {off.tail:.2f} → {tail:.2f} | {harm}"
            )
    print(f"{harmed} of {len(worlds)} worlds are harmed by {args.policy}")
    sys.exit(harmed > 0)


if __name__ == "__main__":
    main()
