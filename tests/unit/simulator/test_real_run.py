"""The one public run of vLLM with data and expert parallelism, simulated.

vLLM 0.19.0, Qwen3-30B-A3B on two GPUs, 300 requests at 10 a second, balance off. The
constants were fitted on 2026-11-26 to the steps of the first half of its time; what is
compared are the requests of the second half. This tests the step time, the scheduler
and the load balancer, not the gain of a policy.
"""

import json
import statistics
from pathlib import Path

import pytest

from vllm_balance.simulator.rank.limits import RankLimits
from vllm_balance.simulator.requests.arrivals import ClientTraffic, Frontend
from vllm_balance.simulator.requests.traces import TimedTrace
from vllm_balance.simulator.scenario import Scenario, Workload, simulate
from vllm_balance.simulator.step_time.model import CostModel

RUN = Path(__file__).parents[3] / "bench" / "traces" / "real_run" / "requests.jsonl"
FITTED = CostModel(t0=0.0203317, a=1.90905e-4, b=3.56502e-5, c=0.0154643, phi=0.6)
TOLERANCES = {"tok/s": 0.03, "TTFT": 0.08, "TPOT": 0.03, "e2e": 0.03}


def figures(rows):
    """Of (sent, first token, last token, output tokens) of each request."""
    sent, _, last, output = zip(*rows, strict=True)
    return {
        "tok/s": sum(output) / (max(last) - min(sent)),
        "TTFT": statistics.fmean(b - a for a, b, _, _ in rows),
        "TPOT": statistics.fmean((c - b) / (n - 1) for _, b, c, n in rows),
        "e2e": statistics.fmean(c - a for a, _, c, _ in rows),
    }


def measured():
    lines = RUN.read_text(encoding="utf-8").splitlines()
    for request in sorted(map(json.loads, lines), key=lambda r: r["queued_ts"]):
        arrived = request["arrival_time"]
        on_the_way = arrived - request["queued_ts"]
        first, last = (request[f"{each}_token_ts"] for each in ("first", "last"))
        yield arrived, first + on_the_way, last + on_the_way, request["output_toks"]


def test_the_second_half_of_the_run_is_predicted():
    names = {"timestamp": "arrival_time", "input_length": "input_toks"}
    names |= {"output_length": "output_toks"}
    labels = {f"label_{what}": name for what, name in names.items()}
    scenario = Scenario(
        RankLimits(2, 128, 2048),
        FITTED,
        Workload(None, trace=RUN, timed_trace=TimedTrace(sec_multiplier=1.0, **labels)),
        ClientTraffic(self_timed=True),
        Frontend(serial_seconds=0.002, jitter_seconds=0.002),
        async_scheduling=True,
    )
    requests = simulate(scenario, "off").requests
    half = len(requests) // 2
    found = figures(
        [(r.sent, r.first_token, r.done, r.output_len) for r in requests[half:]]
    )
    real = figures(list(measured())[half:])
    errors = {name: found[name] / real[name] - 1 for name in real}
    assert errors == {n: pytest.approx(0, abs=most) for n, most in TOLERANCES.items()}
