"""Runs the comparisons and writes one JSON file each to bench/results.

Run it with the interpreter of an environment that has this vLLM::

    python bench/suite.py [published] [workloads] [sensitivity] [kv_limited] [scale]
"""

import argparse
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from scenarios import (
    CHAT_VARIATIONS,
    FIGURES,
    KV_LIMITED,
    PUBLISHED,
    PUBLISHED_RUN,
    SCALES,
    TRACES,
    VARIATIONS,
    WORKLOADS,
    scaled,
    whole_trace,
)
from tqdm import tqdm
from vllm.benchmarks.dp_balance.loop import Run
from vllm.benchmarks.dp_balance.metrics import measure
from vllm.benchmarks.dp_balance.results import PolicyResult, versions, write_json
from vllm.benchmarks.dp_balance.scenario import (
    Scenario,
    simulate,
    simulate_and_measure,
    with_shared_prefill,
)

RESULTS = Path(__file__).parent / "results"
POLICIES = ("off", "cap", "align", "adaptive", "interval-2", "sglang-30")
OWN = ("off", "cap", "align", "adaptive")
ORACLE = "perfect sharing"
MEASURED = (*FIGURES, "balance_ratio", "bound_share")


def run(
    scenario: Scenario, policy: str, seeds: Iterable[int], bar: "tqdm[None]"
) -> tuple[PolicyResult, dict[str, float]]:
    """Runs a policy, or off with perfectly shared prefill.

    Returns:
        The figures, and where the time went as `ms_per_token` says.
    """
    if policy == ORACLE:
        scenario, policy = with_shared_prefill(scenario), "off"
    metrics, spent = [], []
    for seed in seeds:
        found = simulate(scenario, policy, seed)
        in_flight = scenario.traffic.max_concurrency
        metrics.append(measure(found, scenario.limits, in_flight, scenario.cost))
        spent.append(ms_per_token(found, scenario))
        bar.update()
    means = {part: statistics.fmean(s[part] for s in spent) for part in spent[0]}
    return PolicyResult(policy, metrics), means


def ms_per_token(found: Run, scenario: Scenario) -> dict[str, float]:
    """What the time until the last request was sent went into, by the cost model.

    Returns:
        Milliseconds per output token of all ranks together, by part.
    """
    cost, ranks = scenario.cost, scenario.limits.ranks
    steps = [step for step in found.steps if step.end <= found.last_sent]
    prefill = sum(step.prefill for step in steps) / ranks
    most = sum(step.max_prefill for step in steps)
    seconds = {
        "step": cost.t0 * len(steps),
        "prefill": cost.b * prefill,
        "imbalance": cost.b * (1 - cost.phi) * (most - prefill),
        "prefill steps": cost.c * sum(step.prefill > 0 for step in steps),
    }
    seconds["decodes"] = sum(step.seconds for step in steps) - sum(seconds.values())
    tokens = sum(step.tokens for step in steps)
    return {part: 1e3 * value / tokens for part, value in seconds.items()}


def summary(
    result: PolicyResult, spent: Mapping[str, float], off: PolicyResult
) -> dict[str, object]:
    """Mean and spread of each figure, the gains over off, and where the time went.

    A spread is the greatest less the least.
    """
    gains = {
        name: result.gains(name, off)
        for name in ("output_throughput", "steady_output_throughput", "mean_e2el_ms")
    }
    return {
        "mean": {name: result.mean(name) for name in MEASURED},
        "spread": {
            name: max(values) - min(values)
            for name in MEASURED
            for values in [[getattr(run, name) for run in result.runs]]
        },
        "gain": {name: statistics.fmean(values) for name, values in gains.items()},
        "gain_spread": {
            name: max(values) - min(values) for name, values in gains.items()
        },
        "ms_per_token": spent,
    }


def compare(
    title: str, scenarios: Mapping[str, Scenario], policies: Iterable[str], seeds: range
) -> dict[str, object]:
    """Every policy with every seed in every scenario."""
    policies = tuple(policies)
    cases: dict[str, object] = {}
    total = len(scenarios) * len(policies) * len(seeds)
    with tqdm(desc=title, total=total, unit="run", disable=None) as bar:
        for name, scenario in scenarios.items():
            results = {policy: run(scenario, policy, seeds, bar) for policy in policies}
            cases[name] = {
                "scenario": asdict(scenario),
                "policies": {
                    policy: summary(result, spent, results["off"][0])
                    for policy, (result, spent) in results.items()
                },
            }
    return {"seeds": list(seeds), "cases": cases}


def published() -> dict[str, object]:
    """The published table, simulated with the fitted constants."""
    result = compare(
        "published", {"published run": PUBLISHED_RUN}, ("off", "cap"), range(10)
    )
    return result | {"published": PUBLISHED}


def workloads() -> dict[str, object]:
    """All policies on all workloads."""
    return compare("workloads", WORKLOADS, (*POLICIES, ORACLE), range(3))


def sensitivity() -> dict[str, object]:
    """Our policies while one thing at a time is varied."""
    scenarios = {f"fixed, {name}": s for name, s in VARIATIONS.items()} | {
        f"lognormal, {name}": s for name, s in CHAT_VARIATIONS.items()
    }
    return compare("sensitivity", scenarios, OWN, range(2))


def kv_limited() -> dict[str, object]:
    """Where the KV cache is full."""
    policies = ("off", "align", "adaptive", ORACLE)
    return compare("KV limited", KV_LIMITED, policies, range(2, 7, 2))


def scale() -> dict[str, object]:
    """Steps and requests per second of processor time, by data parallel size."""
    rates: dict[str, dict[str, float]] = {}
    traces: dict[str, dict[str, float]] = {}
    total = 2 * len(SCALES) + len(TRACES)
    with tqdm(desc="scale", total=total, unit="run", disable=None) as bar:
        for ranks in SCALES:
            rates[str(ranks)] = {}
            for policy in ("off", "adaptive"):
                start = time.process_time()  # other work does not count
                metrics = simulate_and_measure(scaled(ranks), policy)
                rate = metrics.steps / (time.process_time() - start)
                rates[str(ranks)][policy] = rate
                bar.update()
        for name, path in TRACES.items():
            start = time.process_time()
            found = simulate(whole_trace(path), "adaptive")
            seconds = time.process_time() - start
            traces[name] = {
                "requests": len(found.requests),
                "requests_per_second": len(found.requests) / seconds,
                "steps_per_second": len(found.steps) / seconds,
            }
            bar.update()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "steps_per_second": rates,
        "traces": traces,
        "peak_memory_mib": peak,
        "torch_imported": "torch" in sys.modules,
    }


SUITES: dict[str, Callable[[], dict[str, object]]] = {
    "published": published,
    "workloads": workloads,
    "sensitivity": sensitivity,
    "kv_limited": kv_limited,
    "scale": scale,
}


def main() -> None:
    """Runs the suites that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], metavar="SUITE")
    for name in parser.parse_args().suites or SUITES:
        start = time.perf_counter()
        result = SUITES[name]()
        head = {
            "command": f"python bench/suite.py {name}",
            "versions": versions(),
            "interpreter": platform.python_implementation(),
            "seconds": round(time.perf_counter() - start),
        }
        write_json(RESULTS / f"{name}.json", head | result)
        print(f"Wrote {RESULTS / name}.json")


if __name__ == "__main__":
    main()
