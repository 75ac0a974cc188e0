"""The bound on the mean end-to-end time: no policy beats it, and one can be reached."""

import random
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from vllm.benchmarks.dp_balance.rank.limits import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.requests.request import SimRequest
from vllm.benchmarks.dp_balance.requests.workload import Workload
from vllm.benchmarks.dp_balance.scenario import Scenario, simulate
from vllm.benchmarks.dp_balance.step_time.model import DEEPSEEK_V3_1

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from bound import least_mean_e2el, sum_of_mean_times, tokens_left


@pytest.mark.parametrize("policy", ["off", "align", "adaptive", "sglang-30"])
@pytest.mark.parametrize("seed", range(6))
def test_no_policy_beats_it(policy, seed):
    rng = random.Random(seed)
    limits = RankLimits(rng.choice((1, 2, 4)), 16, rng.choice((512, 4096)))
    prompts = f"lognormal:{rng.choice((300, 3000))}:1:8000"
    answers = f"lognormal:{rng.choice((2, 100))}:1:900"
    workload = Workload(200, prompts, answers, prefix_share=rng.choice((0, 0.5)))
    cost = replace(DEEPSEEK_V3_1, phi=rng.choice((0, 0.5)), padded=rng.choice((0, 1)))
    traffic = ClientTraffic(request_rate=rng.choice((0.02, 1, 20)))
    run = simulate(Scenario(limits, cost, workload, traffic), policy, seed)
    took = sum(each.done - each.sent for each in run.requests) / len(run.requests)
    least = least_mean_e2el(run.requests, limits, cost)
    assert took / 1000 < least <= took


def test_one_full_prompt_on_one_rank_reaches_it():
    limits = RankLimits(1, 16, 4096)
    traffic = ClientTraffic(request_rate=1)
    scenario = Scenario(limits, DEEPSEEK_V3_1, Workload(1, "4096", "1"), traffic)
    (request,) = simulate(scenario, "off").requests
    least = least_mean_e2el([request], limits, DEEPSEEK_V3_1)
    in_front = 0.004  # seconds in the front-end, which the bound does not count
    assert least <= request.done - request.sent <= least + in_front


def test_short_jobs_first_is_the_least_sum():
    """As good as the best of all orders of pieces of one second."""
    for seed in range(20):
        rng = random.Random(seed)
        times = sorted(rng.choices(range(4), k=3))
        jobs = [(float(time), rng.randint(1, 3)) for time in times]
        pieces = [n for n, (_, size) in enumerate(jobs) for _ in range(size)]
        sums = []
        for order in set(permutations(pieces)):
            now = found = 0.0
            for job in order:
                now = max(now, jobs[job][0])
                found += (now + 0.5) / jobs[job][1]
                now += 1
            sums.append(found)
        assert sum_of_mean_times(jobs, 1.0) == pytest.approx(min(sums))


def test_a_shared_beginning_is_computed_once():
    prompts = [(100, (1, 2)), (100, (1, 2, 3)), (64, (1, 2)), (50, (9,))]
    requests = [
        SimRequest(n, size, 1, hash_ids=ids, chunk_size=32)
        for n, (size, ids) in enumerate(prompts)
    ]
    assert tokens_left(requests) == [100, 36, 16, 50]
