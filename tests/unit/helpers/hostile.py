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
from dataclasses import dataclass, replace
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
from vllm.benchmarks.dp_balance.rank.engine import Engine, Outcome, RankLimits
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
AGAIN = (4, 12)
"""Runs more, with other noise, before a world counts as harm: then more of them."""


class Phase(NamedTuple):
    """Requests that come by a Poisson process for a while."""

    seconds: float
    rate: float
    """Requests per second; 0 for silence."""
    prompt: str = "lognormal:1500:0.8:16000"
    output: str = "lognormal:100:0.8:1500"


Factor = Callable[[float], float]
"""By virtual seconds."""


@dataclass(frozen=True)
class World:
    """Everything but the policy and the noise."""

    seed: int
    troubles: tuple[str, ...]
    limits: RankLimits
    cost: CostModel
    phases: list[Phase]
    first_decode: float = 0.0
    """Seconds that the first step without prefill takes longer."""
    speed: Factor = lambda now: 1.0
    """Of every step."""
    decode_speed: Factor = lambda now: 1.0
    """Of what a step takes without its prefill."""
    slow_rank: float = 1.0
    """Factor of the work of the last rank."""
    pauses: Sequence[tuple[float, float]] = ()
    """When, and for how many seconds, some rank stops, and so all."""
    outliers: float = 1.0
    """Factor of one step in a hundred."""
    equal: bool = False
    """Whether every request comes once for each rank."""
    bursts: float = 0.0
    """Seconds between bursts in which requests come."""
    tiny: str | None = None
    """Prompts of a tenant who sends half of the requests, with two-token answers."""
    patience: float = 0.0
    """Mean seconds after which a third of the clients go away; 0 for never."""
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
            prompt, output = (parse_lengths("", text) for text in phase[2:])
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

    def leaving(self) -> dict[int, float]:
        """Of the requests whose clients go away, after how many seconds."""
        rng = random.Random(f"patience {self.seed}")
        return {
            request.index: rng.expovariate(1 / self.patience)
            for request in (self.requests() if self.patience else ())
            if rng.random() < 1 / 3
        }


def each(world: World, **fields: str) -> list[Phase]:
    """The phases, with other lengths."""
    return [phase._replace(**fields) for phase in world.phases]


def slower(world: World, factor: float) -> list[Phase]:
    """The phases, with fewer requests per second."""
    return [phase._replace(rate=phase.rate / factor) for phase in world.phases]


def review(world: World, rng: random.Random) -> dict[str, object]:
    """Quiet with slow decodes, quiet with faster ones, then many requests."""
    lengths = ("lognormal:600:0.8", "lognormal:200:0.8")
    return {
        "cost": CostModel(0.03, 1e-3, 2e-4, 0.0, noise=0.03),
        "decode_speed": lambda t: 2.0 if t < 360 else 1.0 if t < 960 else 4 / 3,
        "phases": [Phase(960, 0.5, *lengths), Phase(90, 8, *lengths)],
        "limits": RankLimits(8, 256, 8192),
    }


def night(world: World, rng: random.Random) -> dict[str, object]:
    """A sixteenth of the requests before, and again between."""
    seconds = rng.uniform(60, 240)
    quiet = [p._replace(seconds=seconds, rate=p.rate / 16) for p in world.phases[:1]]
    return {"phases": 2 * [*quiet, *world.phases]}


def long_prompts(world: World, rng: random.Random) -> dict[str, object]:
    """Prompts of 100 tokens, then of 100,000."""
    few = replace(world, phases=slower(world, 50))
    long = each(few, prompt="100000", output="lognormal:50:0.5:400")
    return {"phases": [*each(world, prompt="100"), *long]}


def lone(world: World, rng: random.Random) -> dict[str, object]:
    """Short answers are remembered, it gets quiet, and few requests come, alone."""
    silence = Phase(rng.choice([5, 900]), 0.0)
    few = Phase(30, 0.5, "4000", "600")
    return {"phases": [*each(world, output="2"), silence, few]}


def kv_full(world: World, rng: random.Random) -> dict[str, object]:
    """The KV cache holds little more than the longest request."""
    longest = max(r.prompt_len + r.output_len for r in world.requests())
    return {"limits": replace(world.limits, kv_blocks=longest // 16 + 500)}


def drift(world: World, rng: random.Random) -> dict[str, object]:
    """Steps take half as long again in the end."""
    at, seconds = moment(world, rng), rng.uniform(20, 300)
    return {"speed": lambda now: 1 + min(0.5, max(0.0, (now - at) / seconds))}


def modes(world: World, rng: random.Random) -> dict[str, object]:
    """Decodes take either of two times, in turn."""
    period, slow = rng.uniform(5, 60), rng.uniform(1.5, 3)
    return {"decode_speed": lambda now: slow if now // period % 2 else 1.0}


def faster(world: World, rng: random.Random) -> dict[str, object]:
    """Decodes take less time from some moment on."""
    at, factor = moment(world, rng), rng.uniform(0.3, 0.7)
    return {"decode_speed": lambda now: factor if now > at else 1.0}


def pauses(world: World, rng: random.Random) -> dict[str, object]:
    """Some rank stops for 2 to 60 s, up to three times."""
    times = sorted(moment(world, rng) for _ in range(rng.randint(1, 3)))
    return {"pauses": [(time, 2 * 30 ** rng.random()) for time in times]}


def moment(world: World, rng: random.Random) -> float:
    """Some time in the first part of the world, in seconds."""
    return rng.uniform(0.1, 0.6) * sum(phase.seconds for phase in world.phases)


def cost(world: World, **fields: float) -> dict[str, object]:
    """The world with other costs."""
    return {"cost": replace(world.cost, **fields)}


TROUBLES: dict[str, Callable[[World, random.Random], dict[str, object]]] = {
    # What changes the requests comes first.
    "review": review,
    "equal": lambda w, rng: {
        "equal": True,
        "balancer": "round-robin",
        "phases": slower(w, w.limits.ranks),
    },
    "night": night,
    "long_prompts": long_prompts,
    "short_answers": lambda w, rng: {"phases": each(w, output="2")},
    "lone": lone,
    "one_seq": lambda w, rng: {
        "limits": replace(w.limits, max_num_seqs=1),
        "phases": slower(w, 8),
    },
    "tiny": lambda w, rng: {"tiny": rng.choice(["uniform:1:20", "1500"])},
    "bursts": lambda w, rng: {"bursts": rng.uniform(2, 20)},
    "closed": lambda w, rng: {
        "concurrency": w.limits.ranks * rng.choice([1, 8, 40]),
        "phases": [p._replace(seconds=3 * p.seconds) for p in w.phases],
    },
    "aborts": lambda w, rng: {"patience": rng.choice([0.2, 2.0, 20.0])},
    "kv_full": kv_full,
    "pinned": lambda w, rng: {"balancer": "pinned"},
    "starved": lambda w, rng: {"balancer": "starved"},
    "as-served": lambda w, rng: {"balancer": "as-served"},
    "0.30": lambda w, rng: {"balancer": "0.30"},
    "two_servers": lambda w, rng: {"api_servers": 2},
    "async": lambda w, rng: {"asynchronous": True},
    "first_decode": lambda w, rng: {"first_decode": rng.uniform(2, 3)},
    "drift": drift,
    "modes": modes,
    "faster": faster,
    "pauses": pauses,
    "slow_rank": lambda w, rng: {"slow_rank": rng.uniform(1.3, 3)},
    "outliers": lambda w, rng: {"outliers": rng.uniform(5, 50)},
    "batch": lambda w, rng: cost(w, a=1e-3, context=1e-6),
    "experts": lambda w, rng: cost(w, experts=0.03),
    "attention": lambda w, rng: cost(w, attention=w.cost.b / 5000),
    "padded": lambda w, rng: cost(w, padded=1.0),
    "noise": lambda w, rng: cost(w, noise=0.4),
}


def make(troubles: Sequence[str], seed: int) -> World:
    """The world with these troubles; what else there is to choose is drawn."""
    rng = random.Random(f"world {seed}")
    ranks, slots = rng.choice([2, 2, 4, 8, 8, 16]), rng.choice([8, 32, 128])
    t0, b = rng.uniform(0.02, 0.06), 10 ** rng.uniform(-4.5, -3.5)
    c, phi = rng.choice([0.0, 0.5, 1.0]) * t0, rng.choice([0.0, 0.0, 0.3, 0.6])
    costs = CostModel(t0, 2e-4, b, c, 6e-8, phi=phi, noise=0.06)
    load = rng.choice([0.05, 0.3, 0.6, 0.9, 1.2])  # of what the ranks can serve
    rate = load * ranks / (2000 * b + 140 * t0 * max(1 / slots, 0.02))
    limits = RankLimits(ranks, slots, rng.choice([2048, 8192]))
    phase = Phase(min(150.0, 200 / rate), rate)
    world = World(seed, tuple(troubles), limits, costs, [phase])
    for trouble in sorted(set(troubles), key=list(TROUBLES).index):
        chance = random.Random(f"{trouble} {seed}")
        world = replace(world, **TROUBLES[trouble](world, chance))
    return world


def parse(name: str) -> World:
    """The world of a name, as `World.name` gives it."""
    seed, _, troubles = name.partition(":")
    return make([trouble for trouble in troubles.split("+") if trouble], int(seed))


def draw(seed: int) -> World:
    """A random world: one to five troubles."""
    rng = random.Random(f"draw {seed}")
    return make(rng.sample(list(TROUBLES)[1:], rng.randint(1, 5)), seed)


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
        world, tokens = self._world, loads.prefill
        if (slow := world.slow_rank) != 1:
            loads = Loads(*([*column[:-1], column[-1] * slow] for column in loads))
        whole = world.cost.step_seconds(loads)
        nothing = [0] * len(loads.prefill)
        decode = world.cost.step_seconds(loads._replace(prefill=nothing))
        prefill = (whole - decode) * world.speed(self.now)
        decode *= world.speed(self.now) * world.decode_speed(self.now)
        self.recent.append(Step(tokens, decode, prefill))
        seconds = world.cost.noisy(decode + prefill, self._rng)
        if self._rng.random() < 0.01:
            seconds *= world.outliers
        if any(loads.decodes) and not prefill:
            seconds, self._first = seconds + self._first, 0.0
        while self._pauses and self._pauses[0][0] <= self.now:
            seconds += self._pauses.pop(0)[1]
        return seconds


class Leaving:
    """Ranks whose clients may go away, in whatever state their requests are."""

    def __init__(self, engine: Engine, device: Device, after: dict[int, float]) -> None:
        self._engine, self._device, self._after = engine, device, after
        self._patient: list[SimRequest] = []
        self._gone: list[SimRequest] = []

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def add(self, rank: int, request: SimRequest) -> None:
        """Hands a request to a rank."""
        self._engine.add(rank, request)
        if request.index in self._after:
            self._patient.append(request)

    def schedule(self) -> Loads:
        """Starts a step, without those who have gone."""
        for request in self._patient.copy():
            if request.sent + self._after[request.index] <= self._device.now:
                self._patient.remove(request)
                self._abort(self._engine._ranks[request.rank], request)
        return self._engine.schedule()

    def _abort(self, rank, request: SimRequest) -> None:
        work = rank._requests.get(str(request.index))
        if work is None or work.ended:
            return
        if work in rank._running:  # preempted, as at the start of the next step
            rank._running.remove(work)
            rank._running.append(work)
            rank._step += 1
            rank._preempt_last()
            rank._step -= 1
        rank._waiting.remove(work)
        del rank._requests[work.name]
        self._gone.append(request)

    def update(self) -> Outcome:
        """Ends a step."""
        first, done = self._engine.update()
        gone, self._gone = self._gone, []
        return Outcome(first, [*done, *gone])


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
        learned = self.copies[0].learned
        return learned and learned.cost


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
    """What is wrong with learned costs, beside the recent steps (medians)."""
    prefills = [step for step in steps if any(step.prefill)]
    if cost is None or not KNOWN <= len(prefills) <= len(steps) - KNOWN:
        return ""
    true = statistics.median(step.decode_seconds for step in steps)
    found = []
    if not true / COSTS <= cost.decode <= true * COSTS:
        found.append(f"decode {cost.decode:.3g}, true {true:.3g}")
    learned = statistics.median(
        cost.prefill_seconds(
            max(step.prefill) / largest,
            statistics.fmean(step.prefill) / largest,
            step.prefill.count(0) / len(step.prefill),
        )
        for step in prefills
    )
    excess = statistics.median(step.prefill_seconds for step in prefills)
    room = COST_STEPS * true
    if not excess / COSTS - room <= learned <= excess * COSTS + room:
        found.append(f"prefill {learned:.3g}, true {excess:.3g}")
    return "; ".join(found)


def serve(world: World, policy: str, noise: int = 0, until: float = math.inf):
    """The figures of a policy in a world.

    Raises:
        AssertionError: copies disagree, costs are not finite, or it takes too long.
    """
    requests, leaving = world.requests(), world.leaving()
    limits, ranks = world.limits, world.limits.ranks
    device = Device(world, random.Random(f"device {world.seed} {noise}"))
    copies = None if policy == "off" else Copies(policy)
    if leaving and not limits.kv_blocks:
        limits = replace(limits, kv_blocks=10**9)  # the engine that can abort
    scenario = Scenario(limits, world.cost, async_scheduling=world.asynchronous)
    engine = Leaving(make_engine(scenario, requests, None), device, leaving)
    rng = random.Random(f"routing {world.seed} {noise}")
    balancer = load_balancer_of(world.balancer, policy)
    if balancer in ("pinned", "starved"):
        only = range(1) if balancer == "pinned" else range(1, ranks)
        balancers = [BlindBalancer(lambda: rng.choice(only))] * world.api_servers
    else:
        balancers = make_load_balancers(
            balancer, ranks, rng, 0.5, world.api_servers, limits.max_num_seqs
        )
    clock = Clock(ranks, balancers, balancer == BY_TOKENS)
    clock.device = device

    def watch(step: StepRecord) -> None:
        assert step.end < until, f"not done after {step.end:.0f} s"

    done = run(
        engine,
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
    stayed = [request for request in requests if request.index not in leaving]
    wrong = copies and wrong_costs(
        copies.cost, device.recent, limits.max_num_batched_tokens
    )
    return Figures(
        statistics.fmean(r.done - r.sent for r in stayed),
        percentile(sorted(r.first_token - r.sent for r in stayed), 0.99),
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
    until = 5 * offs[0].end + 100
    found = None
    try:
        policies = [found := serve(world, policy, until=until)]
        harm = harms(offs, policies) if policy == "adaptive" else []
        for more in AGAIN:
            if not harm:
                break
            for noise in range(len(offs), len(offs) + more):
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
