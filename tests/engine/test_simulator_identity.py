"""The modelled ranks take the same steps as real schedulers with real gates."""

import random
from dataclasses import replace

import pytest
from vllm.benchmarks.dp_balance.front_end.load_balancers import LOAD_BALANCERS
from vllm.benchmarks.dp_balance.loop import StepRecord
from vllm.benchmarks.dp_balance.policies import OWN
from vllm.benchmarks.dp_balance.rank.engine import Engine
from vllm.benchmarks.dp_balance.rank.limits import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload, simulate
from vllm.benchmarks.dp_balance.step_time.model import CostModel

from real_ranks import simulate_real

POLICIES = (
    *OWN,
    "cap:margin=1",
    "atom",
    "eb",
    "sglang-3",
    "sglang-30",
    "sglang23-4",
)
LIMITED_CASES = (*range(32), 55, 129)
"""In the last two the gate counts a block for a request that has had its last step."""
COST = CostModel(t0=0.03, a=4e-4, b=2e-4, c=0.02, context=6e-8, phi=0.2, noise=0.05)


def generated(case):
    """A scenario and a policy; together the cases have every policy and balancer."""
    rng = random.Random(case)
    ranks = rng.choice([2, 3, 4, 8])
    slots = rng.choice([1, 2, 4, 8])
    tokens = rng.choice([slots, 16, 64, 256, 1024])
    limits = RankLimits(ranks, slots, max(slots, tokens))
    workload = Workload(
        num_prompts=min(rng.choice([10, 40, 80]), 10 * slots),
        input_len=rng.choice(["1", "100", "uniform:1:300", "lognormal:80:1:400"]),
        output_len=rng.choice(["1", "30", "normal:40:0.1", "lognormal:20:1:100"]),
    )
    slots_in_all = ranks * slots
    traffic = rng.choice(
        [
            ClientTraffic(max_concurrency=slots_in_all),
            ClientTraffic(max_concurrency=max(1, slots_in_all * 3 // 4)),
            ClientTraffic(max_concurrency=2 * slots_in_all),
            ClientTraffic(request_rate=0.2 * slots_in_all),
            ClientTraffic(request_rate=2.0, burstiness=0.3),
            ClientTraffic(max_concurrency=slots_in_all, request_rate=4.0),
        ]
    )
    scenario = Scenario(
        limits,
        COST,
        workload,
        traffic,
        load_balancer=LOAD_BALANCERS[case % len(LOAD_BALANCERS)],
        async_scheduling=rng.random() < 0.5,
    )
    if case % 3 == 0:  # prompts that share beginnings
        shared = replace(workload, prefix_share=rng.choice([0.3, 0.9]), num_prefixes=3)
        scenario = replace(scenario, workload=shared)
    return scenario, POLICIES[case % len(POLICIES)]


def limited(case):
    """As `generated`, with a KV cache that is full most of the time."""
    scenario, _ = generated(case)
    rng = random.Random(f"limited {case}")
    slots = rng.choice([4, 8, 16])
    limits = replace(
        scenario.limits,
        max_num_seqs=slots,
        max_num_batched_tokens=rng.choice([16, 64, 256, 1024]),
        kv_blocks=rng.choice([40, 45, 60]),
    )
    workload = Workload(
        num_prompts=rng.choice([20, 60]),
        input_len=rng.choice(["40", "uniform:1:300", "lognormal:80:1:400"]),
        output_len=rng.choice(["60", "normal:100:0.2", "lognormal:60:1:200"]),
    )
    traffic = rng.choice(
        [
            ClientTraffic(max_concurrency=limits.ranks * slots),
            ClientTraffic(max_concurrency=2 * limits.ranks * slots),
            ClientTraffic(request_rate=2.0 * limits.ranks),
        ]
    )
    scenario = replace(scenario, limits=limits, workload=workload, traffic=traffic)
    return scenario, POLICIES[case % len(POLICIES)]


def trace(monkeypatch, simulated, *arguments):
    """Of `simulate` or `simulate_real` the steps, and what ranks tell after each."""
    rows: list[object] = []
    exchange = Engine.exchange

    def spy(self, wave, step, now):
        snapshot = exchange(self, wave, step, now)
        rows.append((snapshot, self.backlogs(), self.contexts()))
        return snapshot

    monkeypatch.setattr(Engine, "exchange", spy)
    steps: list[object] = []
    simulated(*arguments, on_step=lambda step: steps.append(_plain(step)))
    monkeypatch.undo()
    return steps, rows


def _plain(step):
    loads = step.loads._replace(
        **{name: tuple(getattr(step.loads, name)) for name in step.loads._fields}
    )
    # The usage of the KV cache counts when the others change: requests go by it then.
    counts = tuple(each._replace(kv_usage=0.0) for each in step.counts)
    return step._replace(loads=loads, counts=counts)


@pytest.mark.parametrize("case", LIMITED_CASES)
def test_same_with_a_full_kv_cache(case, monkeypatch):
    assert_same(*limited(case), case, monkeypatch)


def attending(case):
    """As `generated` or `limited`, with long prompts and policies that learn of it."""
    is_limited = case % 4 == 3
    scenario, _ = (limited if is_limited else generated)(case)
    input_len = "lognormal:120:1:400" if is_limited else "lognormal:600:1:4000"
    limits = replace(scenario.limits, max_num_batched_tokens=256)
    workload = replace(scenario.workload, num_prompts=40, input_len=input_len)
    cost = replace(COST, attention=(1e-6, 1e-5)[case % 2])
    policies = "adaptive", "adaptive-fcfs", "align"
    scenario = replace(scenario, limits=limits, workload=workload, cost=cost)
    return scenario, policies[case % 3]


def test_adaptive_learns_what_attention_costs_in_half_of_these(monkeypatch):
    found: set[int] = set()
    decide, cases = Engine.decide, [case for case in range(12) if case % 3 < 2]
    for case in cases:

        def spy(self, decision, case=case):
            found.update([case] * (decision.admit and decision.cost_per_attended > 0))
            decide(self, decision)

        monkeypatch.setattr(Engine, "decide", spy)
        simulate(*attending(case), case)
    assert len(found) >= len(cases) / 2, found


def drafted(case):
    """As the others, with drafts."""
    kind = (generated, limited, reordered)[case % 3]
    scenario, policy = kind(case // 3)
    return speculating(scenario, case), policy


def speculating(scenario, case):
    """The same with drafts, of which a step has room for all."""
    rates = ((0.8,), (0.85, 0.65, 0.5), (1.0, 1.0), (0.0, 0.0, 0.0), (0.9,) * 7)
    limits = scenario.limits
    most = max(limits.max_num_batched_tokens, 8 * limits.max_num_seqs)
    limits = replace(limits, max_num_batched_tokens=most)
    limits = replace(limits, acceptance_rates=rates[case % len(rates)])
    return replace(scenario, limits=limits, async_scheduling=case % 4 < 2)


def reordered(case):
    """As `generated` or `limited`, for any policy, and short prompts may pass."""
    scenario, policy = (limited if case % 2 else generated)(case + 5 * (case % 4))
    workload = replace(scenario.workload, input_len="lognormal:80:1:400")
    traffic = ClientTraffic(request_rate=4.0 * scenario.limits.ranks, burstiness=0.05)
    policy = policy if case % 3 else "adaptive"
    changes = {"workload": workload, "traffic": traffic, "short_first": True}
    return replace(scenario, **changes), policy


KINDS = {generated: 60, reordered: 16, attending: 12, drafted: 48}


@pytest.mark.parametrize(
    ("kind", "case"), [(kind, n) for kind, cases in KINDS.items() for n in range(cases)]
)
def test_same_steps_and_rows(kind, case, monkeypatch):
    assert_same(*kind(case), case, monkeypatch)


def assert_same(scenario, policy, case, monkeypatch):
    modelled = trace(monkeypatch, simulate, scenario, policy, case)
    real = trace(monkeypatch, simulate_real, scenario, policy, case)
    for number, (mine, theirs) in enumerate(zip(modelled[0], real[0], strict=False)):
        assert mine == theirs, f"step {number}, {policy}, {scenario}"
    assert len(modelled[0]) == len(real[0])
    for number, (ours, gates) in enumerate(zip(modelled[1], real[1], strict=True)):
        assert ours == gates, f"rows of step {number}, {policy}, {scenario}"


def test_the_cases_hold_prompts_back_and_preempt():
    """Both in one run of a full cache, and in both kinds of scheduling."""
    held, preempted, sample = 0, {False: 0, True: 0}, LIMITED_CASES[::2]
    for case in sample:
        steps: list[StepRecord] = []
        scenario, policy = limited(case)
        run = simulate(scenario, policy, case, on_step=steps.append)
        prompts = sum(request.prompt_len for request in run.requests)
        if sum(sum(step.loads.prefill) for step in steps) > prompts:
            preempted[scenario.async_scheduling] += 1
            held += any(any(step.held) for step in steps)
    assert min(preempted.values()) > len(sample) / 6
    assert held > len(sample) / 6
