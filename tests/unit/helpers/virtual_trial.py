"""A trial in virtual time: the simulator's ranks, whose policy is switched.

The ranks are as two cores are with the demo's model: a slot is a request that decodes,
and a prompt takes as long as twenty of its decode steps.
"""

import math
import random
from collections import defaultdict
from dataclasses import replace
from unittest import mock

from vllm_balance.core.policies import Decision
from vllm_balance.simulator import scenario as scenario_module
from vllm_balance.simulator.policies import make_controller
from vllm_balance.simulator.rank.limits import RankLimits
from vllm_balance.simulator.requests.arrivals import ClientTraffic
from vllm_balance.simulator.scenario import Scenario, Workload, simulate
from vllm_balance.simulator.step_time.model import CostModel
from vllm_balance.trial.figures import TICK, Answer, Measured, Stretch
from vllm_balance.trial.load import Sending
from vllm_balance.trial.switchback import served_name
from vllm_balance.trial.verdict import LEAST_BLOCKS, level

COST = CostModel(t0=0.04, a=0.008, b=1.3e-3, c=0.0, phi=0.33, noise=0.1)
LIMITS = RankLimits(2, 8, 1024)
WORK = Workload(1, "uniform:80:720", "uniform:10:86")
CLIENTS, PER_SECOND = 16, 2.6
"""Requests under way in a closed loop, and more than any policy serves then."""


class Switched:
    def __init__(self, plan, length, in_flight):
        self.plan, self.length, self.now = plan, length, 0.0
        self.own = {p: make_controller(served_name(p), in_flight) for _, p in plan}

    def decide(self, snapshot):
        _, policy = self.plan[min(int(self.now / self.length), len(self.plan) - 1)]
        if (own := self.own[policy]) is None:
            return Decision(True, None, "off")
        return own.decide(snapshot)

    def reset(self):
        for own in self.own.values():
            if own is not None:
                own.reset()


def run(plan, length, seed, rate):
    """Serves so long with each policy of a plan; the requests.

    Args:
        plan: block and policy of each stretch.
        length: seconds of a stretch.
        seed: of what is drawn.
        rate: of requests that come at random, the same in the stretches of a block;
            None of a closed loop.
    """
    drawn, dues = random.Random(seed), []
    if rate is not None:
        for number, (block, _) in enumerate(plan):
            sending = Sending([None] * 9, None, None, rate)
            for place, due in enumerate(sending.dues(0, hash((seed, block)))):
                if due > length:
                    break
                sizes = random.Random(f"{seed} {block} {place}")
                size = sizes.randint(80, 720), sizes.randint(10, 86)
                dues.append((number * length + due, size))
    count = len(dues) or int(len(plan) * length * PER_SECOND) + CLIENTS
    made = []

    def controller(in_flight):
        made.append(Switched(plan, length, in_flight))
        return made[0]

    def requests_of(_, __):
        found = ORIGINAL(Scenario(LIMITS, COST, _sized(count)), drawn.randrange(10**9))
        for request, (due, size) in zip(found, dues, strict=False):
            request.due, (request.prompt_len, request.output_len) = due, size
        return found

    traffic = ClientTraffic(self_timed=True) if dues else ClientTraffic(CLIENTS)
    how = {"load_balancer": "as-served", "async_scheduling": True}
    served = Scenario(LIMITS, COST, _sized(count), traffic, **how)

    def on_step(step):
        made[0].now = step.end

    ours = {"switched": controller}
    with mock.patch.object(scenario_module, "requests_of", requests_of):
        return simulate(
            served, "switched", seed, controllers=ours, on_step=on_step
        ).requests


ORIGINAL = scenario_module.requests_of


def _sized(count):
    return Workload(count, WORK.input_len, WORK.output_len)


def trial(policies, blocks, length, seed, rate=None, washout=None):
    """A switchback of so many blocks, behind one that is not judged."""
    rng = random.Random(f"order {seed}")
    plan = [
        (b, p) for b in range(-1, blocks) for p in rng.sample(policies, len(policies))
    ]
    answers, ticks = [], defaultdict(float)
    for each in run(plan, length, seed, rate):
        gap = (each.done - each.first_token) / max(1, each.output_len - 1)
        for number in range(each.output_len):
            ticks[int((each.first_token + number * gap) / TICK)] += 1
        lengths = each.prompt_len, each.output_len
        answers.append(
            Answer(each.index, each.sent, each.first_token, each.done, *lengths, "")
        )
    befores = [None, *(policy for _, policy in plan[:-1])]
    stretches = [
        Stretch(block, policy, before, number * length, (number + 1) * length)
        for number, ((block, policy), before) in enumerate(
            zip(plan, befores, strict=True)
        )
        if block >= 0
    ]
    clients = None if rate else CLIENTS
    if washout is None:  # half of three answers that are a stretch, or one of six
        washout = length / 6
    return Measured(answers, ticks, [], stretches, washout, clients)


def verdict(measured, policies):
    """What a trial says that looks at each block."""
    base, other = policies
    for blocks in range(LEAST_BLOCKS, measured.blocks + 1):
        kept = [s for s in measured.stretches if s.block < blocks]
        seen = replace(measured, stretches=kept)
        found = seen.ratio(other, base, alpha=level(blocks, measured.blocks))
        if found.differs:
            break
    return found


def mean_latency(policy, seconds, seed, rate=None):
    """Of a whole run with one policy, without its beginning and end."""
    found = run([(0, policy)], seconds, seed, rate)
    middle = [r for r in found if 0.1 * seconds < r.sent < 0.9 * seconds]
    return math.fsum(r.done - r.sent for r in middle) / len(middle)
