"""Compares a policy with off in adverse worlds.

As a program, prints the worlds in which it harms:
`python bench/worlds/hostile.py --seeds 0..1000`.
"""

import argparse
import copy
import math
import random
import statistics
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT)]

from tqdm import tqdm

from hostile_worlds import World, draw, parse
from rivals.routers import ROUTERS, BlindBalancer, one_for_all
from vllm_balance.core.policies.rows import Snapshot
from vllm_balance.simulator.front_end.backends import Backends, LoadBalancer
from vllm_balance.simulator.front_end.load_balancers import (
    BY_COUNTS,
    BY_TOKENS,
    LOAD_BALANCERS,
)
from vllm_balance.simulator.loop import StepRecord
from vllm_balance.simulator.metrics import percentile
from vllm_balance.simulator.policies import make_controller
from vllm_balance.simulator.rank.engine import Engine
from vllm_balance.simulator.requests.arrivals import ClientTraffic, Frontend
from vllm_balance.simulator.requests.request import SimRequest
from vllm_balance.simulator.scenario import Scenario, simulate
from vllm_balance.simulator.step_time.model import Loads

MEAN, TAIL, TAIL_SECONDS = 1.02, 2.0, 2.0
"""Limits over those of off: factors of mean latency and of p99 TTFT, and seconds that
are added to the latter."""
COSTS, COST_STEPS = 3.0, 0.5
"""How far learned costs may be off: a factor, and decode steps that are added."""
RECENT, KNOWN = 200, 20
"""Steps over which costs are judged; and how many of them must prefill, and how many
must not, before they are."""
AGAIN = (4, 12)
"""Further runs with other noise that must confirm a harm, in two stages."""


class TrueStep(NamedTuple):
    """The load of a step, and its true times in seconds, without noise."""

    prefill: Sequence[int]
    attended: Sequence[float]
    decode_seconds: float
    prefill_seconds: float


class Device:
    """The device of a world, in place of `CostModel`: step times change over time."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._pauses = list(world.pauses)
        self._first = world.first_decode
        self.recent: deque[TrueStep] = deque(maxlen=RECENT)

    def __call__(self, loads: Loads, now: float) -> float:
        world, tokens, attended = self._world, loads.prefill, loads.attended
        if (slow := world.slow_rank) != 1:
            loads = Loads(*([*column[:-1], column[-1] * slow] for column in loads))
        total = world.cost.step_seconds(loads)
        no_prefill = [0] * len(loads.prefill)
        decode = world.cost.step_seconds(loads._replace(prefill=no_prefill))
        prefill = (total - decode) * world.speed(now)
        decode *= world.speed(now) * world.decode_speed(now)
        self.recent.append(TrueStep(tokens, attended, decode, prefill))
        seconds = world.cost.noisy(decode + prefill, self._rng)
        if self._rng.random() < 0.01:
            seconds += world.outliers * decode
        if any(loads.decodes) and not prefill:
            seconds, self._first = seconds + self._first, 0.0
        while self._pauses and self._pauses[0][0] <= now:
            seconds += self._pauses.pop(0)[1]
        return seconds


class Leaving:
    """Aborts the requests of clients that go away, in any state."""

    def __init__(self, requests: Sequence[SimRequest], after: dict[int, float]) -> None:
        """Takes by request number the seconds after which its client goes away."""
        self._after = after
        self._patient = [request for request in requests if request.index in after]

    def __call__(self, engine: Engine, now: float) -> list[SimRequest]:
        gone = []
        for request in self._patient.copy():
            is_there = request.rank >= 0
            if is_there and request.sent + self._after[request.index] <= now:
                self._patient.remove(request)
                if _abort(engine._ranks[request.rank], request):
                    gone.append(request)
        return gone


def _abort(rank, request: SimRequest) -> bool:
    work = rank._requests.get(str(request.index))
    if work is None or work.ended:
        return False
    if work in rank._running:  # preempted, as at the start of the next step
        rank._ended += work is not rank._partial
        rank._running.remove(work)
        rank._running.append(work)
        rank.step += 1
        rank._preempt_last()
        rank.step -= 1
    rank._waiting.remove(work)
    del rank._requests[work.request_id]
    getattr(rank, "_note_change", int)()
    return True


class Copies:
    """Two copies of a policy, as two ranks have, which get equal snapshots."""

    def __init__(self, policy: str, in_flight: int) -> None:
        self.copies = [make_controller(policy, in_flight) for _ in range(2)]

    def decide(self, snapshot: Snapshot):
        decisions = [c.decide(Snapshot(*snapshot)) for c in self.copies]
        assert decisions[0] == decisions[1], f"copies disagree: {decisions}"
        cost = self.cost
        assert cost is None or all(map(math.isfinite, cost)), cost
        return decisions[0]

    def reset(self) -> None:
        """Ends a wave; a rank that joins copies the state of another."""
        for copied in self.copies:
            copied.reset()
        self.copies[1] = copy.deepcopy(self.copies[0])

    @property
    def cost(self):
        learned = self.copies[0].learned
        return learned and learned.cost


class Served(NamedTuple):
    mean: float
    """End-to-end time."""
    tail: float
    """p99 TTFT."""
    end: float
    costs: str
    """What is wrong with the learned costs; empty if nothing is."""


def wrong_costs(cost, steps: Sequence[TrueStep], largest: int) -> str:
    """How learned costs differ from the medians of recent steps; empty if little."""
    prefills = [step for step in steps if any(step.prefill)]
    if cost is None or not KNOWN <= len(prefills) <= len(steps) - KNOWN:
        return ""
    true = statistics.median(step.decode_seconds for step in steps)
    problems = []
    if not true / COSTS <= cost.decode <= true * COSTS:
        problems.append(f"decode {cost.decode:.3g}, true {true:.3g}")
    learned = statistics.median(
        cost.prefill_seconds(
            max(step.prefill) / largest,
            statistics.fmean(step.prefill) / largest,
            step.prefill.count(0) / len(step.prefill),
            max(step.attended) / largest**2,
        )
        for step in prefills
    )
    excess = statistics.median(step.prefill_seconds for step in prefills)
    room = COST_STEPS * true
    if not excess / COSTS - room <= learned <= excess * COSTS + room:
        problems.append(f"prefill {learned:.3g}, true {excess:.3g}")
    return "; ".join(problems)


class Sent(NamedTuple):
    sent: Sequence[SimRequest]

    def requests(self, rng: random.Random) -> Sequence[SimRequest]:
        return self.sent


def _pinned(backends: Backends) -> LoadBalancer:
    return BlindBalancer(lambda: backends.rng.choice(range(1)))


def _starved(backends: Backends) -> LoadBalancer:
    return BlindBalancer(lambda: backends.rng.choice(range(1, backends.ranks)))


ONLY = {"pinned": one_for_all(_pinned), "starved": one_for_all(_starved)}
"""Routers that send all requests to the first rank, or none."""
BALANCERS = {**LOAD_BALANCERS, **ROUTERS, **ONLY}


def balancer_of(world: World, policy: str) -> str:
    if world.balancer == "as-served":
        return BY_COUNTS if policy == "off" else BY_TOKENS
    if world.balancer in ONLY and world.limits.ranks == 1:
        return BY_COUNTS
    return world.balancer


def serve(world: World, policy: str, noise: int = 0, until: float = math.inf) -> Served:
    """The figures of a policy in a world.

    Raises:
        AssertionError: copies disagree, costs are not finite, or `until` has passed.
    """
    requests, leaving = world.requests(noise), world.leaving()
    limits = world.limits
    device = Device(world, random.Random(f"device {world.seed} {noise}"))
    copies = None if policy == "off" else Copies(policy, 1 + world.asynchronous)
    if leaving and not limits.kv_blocks:
        limits = replace(limits, kv_blocks=10**9)  # the engine that can abort
    scenario = Scenario(
        limits,
        world.cost,
        Sent(requests),
        ClientTraffic(world.concurrency, self_timed=True),
        Frontend(api_servers=world.api_servers),
        balancer_of(world, policy),
        async_scheduling=world.asynchronous,
    )

    def watch(step: StepRecord) -> None:
        assert step.end < until, f"not done after {step.end:.0f} s"

    run = simulate(
        scenario,
        policy,
        controllers={} if copies is None else {policy: lambda in_flight: copies},
        routers=BALANCERS,
        device=device,
        leave=Leaving(requests, leaving),
        rng=random.Random(f"routing {world.seed} {noise}"),
        on_step=watch,
    )
    stayed = [request for request in requests if request.index not in leaving]
    problems = copies and wrong_costs(
        copies.cost, device.recent, limits.max_num_batched_tokens
    )
    return Served(
        statistics.fmean(r.done - r.sent for r in stayed),
        percentile(sorted(r.first_token - r.sent for r in stayed), 0.99),
        run.steps[-1].end,
        problems or "",
    )


def harms(offs: Sequence[Served], policies: Sequence[Served]) -> list[str]:
    """The figures beyond the limits plus two standard errors of off's noise."""
    worse = []
    for name, factor, seconds in (("mean", MEAN, 0.0), ("tail", TAIL, TAIL_SECONDS)):
        before = [getattr(off, name) for off in offs]
        after = statistics.fmean(getattr(policy, name) for policy in policies)
        spread = statistics.stdev(before) * math.sqrt(2) if before[1:] else 0.0
        allowance = 2 * spread / math.sqrt(len(before))
        if after > factor * statistics.fmean(before) + seconds + allowance:
            worse.append(name)
    return worse


def judge(world: World, policy: str) -> tuple[Served, Served | None, str]:
    """The figures of off and of a policy, and the harm that other noise confirms."""
    offs, policies = [serve(world, "off")], []
    until = 5 * offs[0].end + 100
    try:
        policies.append(serve(world, policy, until=until))
        harm = harms(offs, policies) if policy == "adaptive" else []
        for runs in AGAIN:
            for noise in range(len(offs), len(offs) + (runs if harm else 0)):
                offs.append(serve(world, "off", noise))
                policies.append(serve(world, policy, noise, until))
            harm = harm and harms(offs, policies)
        harm += [policies[0].costs] if policies[0].costs else []
    except Exception as error:
        harm = [f"{type(error).__name__}: {error}"]
    return offs[0], policies[0] if policies else None, ", ".join(harm)


def main() -> None:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", default="0..100", help="FIRST..END")
    parser.add_argument("--policy", default="adaptive")
    parser.add_argument("--ranks", type=int, help="instead of those that are drawn")
    parser.add_argument("worlds", nargs="*", help="SEED:TROUBLE+TROUBLE, instead")
    args = parser.parse_args()
    first, _, end = args.seeds.partition("..")
    worlds = [parse(name, args.ranks) for name in args.worlds]
    seeds = range(int(first), int(end))
    worlds = worlds or [draw(seed, args.ranks) for seed in seeds]
    harmed = 0
    tqdm.write("world | mean off → policy | factor | TTFT p99 off → policy | harm")
    for world in tqdm(worlds, disable=None):
        off, policy, harm = judge(world, args.policy)
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
