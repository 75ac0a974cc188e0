"""Decisions are the same on every host: what IEEE 754 fixes does not depend on Python.

Recorded is a hash of all decisions, and of all bits of what was learned, on three
simulated servers; lengths and times of the requests are read, not drawn, because C
libraries differ in logarithms. If the policies were changed on purpose, put the new
hash here once it is the same on two Pythons.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

from vllm_balance.core.policies import LatencyLimits
from vllm_balance.simulator.policies import make_controller
from vllm_balance.simulator.rank.limits import RankLimits
from vllm_balance.simulator.requests.arrivals import ClientTraffic
from vllm_balance.simulator.requests.traces import TimedTrace
from vllm_balance.simulator.scenario import Scenario, Workload, simulate
from vllm_balance.simulator.step_time.presets import PRESETS

A2 = replace(PRESETS["a2-dp4-tp4"], a=60e-6, c=0.0, drafter=0.0, noise=0.1)
"""As the preset was when they were recorded."""
CODE = Path(__file__).parents[3] / "bench" / "traces" / "azure_2023_code.csv"
SERVED = {
    "a trace": Scenario(
        RankLimits(4, 8, 4096),
        A2,
        Workload(400, trace=CODE, timed_trace=TimedTrace(start=0.0)),
        ClientTraffic(self_timed=True, rate_multiplier=2.0),
    ),
    "long prompts": Scenario(
        RankLimits(4, 8, 4096, acceptance_rates=(0.85, 0.65)),
        A2,
        Workload(40, "20000", "400"),
        ClientTraffic(max_concurrency=10),
    ),
    "a full cache": Scenario(
        RankLimits(4, 32, 4096, kv_blocks=700),
        A2,
        Workload(400, trace=CODE, timed_trace=TimedTrace(start=0.0)),
        ClientTraffic(self_timed=True, rate_multiplier=9.0),
        async_scheduling=True,
    ),
}
LIMITS = LatencyLimits(8.0, 0.5)
SERVED["limits"] = replace(SERVED["a trace"], latency_limits=LIMITS)
REASONS = {
    "cheap",
    "decodes_first",
    "first_token",
    "gain",
    "hold_bound",
    "idle",
    "learn",
    "losing",
    "waiting_cost",
}
RECORDED = {
    "a trace": "e5b34f610d4100c0",
    "long prompts": "6ccd09670677c222",
    "a full cache": "4fe838f488732870",
    "limits": "e79dcbffa0cb540e",
}


class Recording:
    """Decides as a policy does, and writes it down, bit by bit."""

    def __init__(self, policy):
        self._policy = policy
        self.reset = policy.reset
        self.decisions, self.texts = [], []

    def decide(self, snapshot):
        decision = self._policy.decide(snapshot)
        self.decisions.append(decision)
        learned = self._policy.learned
        floats = decision.cost_per_attended, *(learned.cost if learned else ())
        self.texts.append(repr([*decision[:3], *map(float.hex, map(float, floats))]))
        return decision


def test_recorded_decisions_are_taken_again():
    made = []
    for served in SERVED.values():
        policy = make_controller(
            "adaptive", 1 + served.async_scheduling, limits=served.latency_limits
        )
        made.append(Recording(policy))
        simulate(served, "adaptive", 1, controllers={"adaptive": lambda _: made[-1]})
    texts = ["".join(one.texts).encode() for one in made]
    hashes = [hashlib.sha256(text).hexdigest()[:16] for text in texts]
    assert dict(zip(SERVED, hashes, strict=True)) == RECORDED
    decisions = [each for one in made for each in one.decisions]
    assert {each.reason for each in decisions} == REASONS
    assert {each.cost_per_attended > 0 for each in decisions} == {True, False}
