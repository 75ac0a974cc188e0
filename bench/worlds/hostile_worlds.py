"""Adverse worlds for a policy: plain devices and requests, with troubles."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from vllm_balance.simulator.requests.workload import SimRequest, parse_lengths
from vllm_balance.simulator.scenario import RankLimits
from vllm_balance.simulator.step_time.model import CostModel


class Phase(NamedTuple):
    """Requests that come by a Poisson process for a while."""

    seconds: float
    rate: float
    """Requests per second; 0 for silence."""
    prompt: str = "lognormal:1500:0.8:16000"
    output: str = "lognormal:100:0.8:1500"


Factor = Callable[[float], float]
"""A factor by virtual seconds."""
Changes = dict[str, object]
"""Fields of a world, by name."""


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
    """Factor of the time of every step."""
    decode_speed: Factor = lambda now: 1.0
    """Factor of the time of a step without its prefill."""
    slow_rank: float = 1.0
    """Factor of the work of the last rank."""
    pauses: Sequence[tuple[float, float]] = ()
    """Times at which a rank stops, and so all do, and for how many seconds."""
    outliers: float = 0.0
    """Decode steps that one step in a hundred takes longer."""
    equal: bool = False
    """Whether each request is sent as many times as there are ranks."""
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
    def name(self):
        """Seed and troubles, from which `parse` makes the world again."""
        return f"{self.seed}:{'+'.join(self.troubles)}"

    def requests(self, noise=0):
        """The requests; with noise, those of a closed loop begin with another one."""
        rng, requests, start = random.Random(f"requests {self.seed}"), [], 0.0
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
                    requests.append(SimRequest(len(requests), *lengths))
                    requests[-1].due = 0.0 if self.concurrency else due
        requests = requests or [SimRequest(0, prompt(rng), output(rng), due=0.0)]
        begin = random.Random(f"begin {noise}").randrange(max(1, len(requests)))
        is_turned = self.concurrency and noise
        return requests[begin:] + requests[:begin] if is_turned else requests

    def leaving(self):
        """By request the seconds after which its client goes away.

        The first client stays, so that there is a latency to judge.
        """
        rng = random.Random(f"patience {self.seed}")
        return {
            request.index: rng.expovariate(1 / self.patience)
            for request in (self.requests() if self.patience else ())
            if rng.random() < 1 / 3 and request.index
        }


def phases(world, rate=1.0, seconds=1.0, **lengths):
    return [
        p._replace(rate=p.rate * rate, seconds=p.seconds * seconds, **lengths)
        for p in world.phases
    ]


def review(world, rng):
    lengths = ("lognormal:600:0.8", "lognormal:200:0.8")
    return {
        "cost": CostModel(0.03, 1e-3, 2e-4, 0.0, noise=0.03),
        "decode_speed": lambda t: 2.0 if t < 360 else 1.0 if t < 960 else 4 / 3,
        "phases": [Phase(960, 0.5, *lengths), Phase(90, 8, *lengths)],
        "limits": RankLimits(8, 256, 8192),
    }


def night(world, rng):
    quiet = phases(world, 1 / 16)[0]._replace(seconds=rng.uniform(60, 240))
    return {"phases": 2 * [quiet, *world.phases]}


def long_prompts(world, rng):
    """Prompts of 100 tokens, then of 100,000."""
    few = phases(world, 1 / 50, prompt="100000", output="lognormal:50:0.5:400")
    return {"phases": [*phases(world, prompt="100"), *few]}


def lone(world, rng):
    """Short answers are learned, then silence, then a few requests come one by one."""
    silence = Phase(rng.choice([5, 900]), 0.0)
    few = Phase(30, 0.5, "4000", "600")
    return {"phases": [*phases(world, output="2"), silence, few]}


def kv_full(world, rng):
    """The KV cache has room for little more than the longest request."""
    longest = max(r.prompt_len + r.output_len for r in world.requests())
    return {"limits": replace(world.limits, kv_blocks=longest // 16 + 500)}


def drift(world, rng):
    """Steps slow down, by half in the end."""
    at, seconds = moment(world, rng), rng.uniform(20, 300)
    return {"speed": lambda now: 1 + min(0.5, max(0.0, (now - at) / seconds))}


def modes(world, rng):
    """The time of decodes alternates between two values."""
    period, slow = rng.uniform(5, 60), rng.uniform(1.5, 3)
    return {"decode_speed": lambda now: slow if now // period % 2 else 1.0}


def faster(world, rng):
    """Decodes take less time from some moment on."""
    at, factor = moment(world, rng), rng.uniform(0.3, 0.7)
    return {"decode_speed": lambda now: factor if now > at else 1.0}


def pauses(world, rng):
    """Some rank stops for 2 to 60 s, up to three times."""
    times = sorted(moment(world, rng) for _ in range(rng.randint(1, 3)))
    return {"pauses": [(time, 2 * 30 ** rng.random()) for time in times]}


def moment(world, rng):
    return rng.uniform(0.1, 0.6) * sum(phase.seconds for phase in world.phases)


def cost(world, **fields):
    return {"cost": replace(world.cost, **fields)}


TROUBLES: dict[str, Callable[[World, random.Random], Changes]] = {
    # What changes the requests comes first.
    "review": review,
    "equal": lambda w, rng: {
        "equal": True,
        "balancer": "round-robin",
        "phases": phases(w, 1 / w.limits.ranks),
    },
    "night": night,
    "long_prompts": long_prompts,
    "short_answers": lambda w, rng: {"phases": phases(w, output="2")},
    "lone": lone,
    "one_seq": lambda w, rng: {
        "limits": replace(w.limits, max_num_seqs=1),
        "phases": phases(w, 1 / 8),
    },
    "tiny": lambda w, rng: {"tiny": rng.choice(["uniform:1:20", "1500"])},
    "bursts": lambda w, rng: {"bursts": rng.uniform(2, 20)},
    "closed": lambda w, rng: {
        "concurrency": w.limits.ranks * rng.choice([1, 8, 40]),
        "phases": phases(w, seconds=3),
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


def make(troubles, seed, ranks=None):
    """A world with these troubles; all other parameters are drawn."""
    rng = random.Random(f"world {seed}")
    drawn, slots = rng.choice([2, 2, 4, 8, 8, 16]), rng.choice([8, 32, 128])
    ranks = ranks or drawn
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


def parse(name, ranks=None):
    seed, _, troubles = name.partition(":")
    named = [trouble for trouble in troubles.split("+") if trouble]
    return make(named, int(seed), ranks)


def draw(seed, ranks=None):
    """A world with one to five troubles."""
    rng = random.Random(f"draw {seed}")
    return make(rng.sample(list(TROUBLES)[1:], rng.randint(1, 5)), seed, ranks)
