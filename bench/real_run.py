"""Calibrates on one half of a real run and predicts the other.

::

    python bench/real_run.py

The run is public (bench/traces/real_run): vLLM 0.19, two data parallel ranks, balance
off. It has four times per request and no steps. `steps.csv` has the steps, which were
reconstructed from these times at commit dc4c77c: events less than 5 ms apart are one
boundary, and a mixed integer program says how many steps lie between two of them, so
that every request takes one step less than it has output tokens. Which rank had a
request is not known: decodes are taken as shared evenly, and prompts that end together
as dealt to the rank with the fewest prompt tokens.
"""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "unit" / "helpers"))

import pure_vllm  # noqa: F401  the simulator without vLLM's own, and its torch

# isort: split
from vllm.benchmarks.dp_balance.rank.engine import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic, Frontend
from vllm.benchmarks.dp_balance.requests.traces import TimedTrace
from vllm.benchmarks.dp_balance.results import versions, write_json
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload, simulate
from vllm.benchmarks.dp_balance.step_time.fit import fit
from vllm.benchmarks.dp_balance.step_time.model import CostModel
from vllm.benchmarks.dp_balance.step_time.steps import StepSample

RUN = ROOT / "bench" / "traces" / "real_run"
RANKS, SLOTS, BUDGET = 2, 128, 2048


class Step(NamedTuple):
    """What is known of a step, and when the interval ends whose time is known."""

    sample: StepSample
    end_s: float


def read_steps() -> list[Step]:
    """The steps of the run, in their order."""
    with (RUN / "steps.csv").open(encoding="utf-8", newline="") as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    return [
        Step(
            StepSample(
                row["seconds"],
                (row["prefill_0"], row["prefill_1"]),
                (row["decodes"] / RANKS,) * RANKS,
                row["seconds"] > 0,
            ),
            row["end_s"],
        )
        for row in rows
    ]


def figures(rows: Sequence[tuple[float, float, float, int]]) -> dict[str, float]:
    """Of (sent, first token, last token, output tokens) of each request."""
    count = len(rows)
    sent, first, last, output = zip(*rows, strict=True)
    return {
        "output_throughput": sum(output) / (max(last) - min(sent)),
        "mean_ttft_ms": 1e3 * (sum(first) - sum(sent)) / count,
        "mean_tpot_ms": 1e3
        * sum((b - a) / (n - 1) for a, b, n in zip(first, last, output, strict=True))
        / count,
        "mean_e2el_ms": 1e3 * (sum(last) - sum(sent)) / count,
    }


def measured(requests: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The same of the real run, with the way to the engine left as it was."""
    rows = []
    for request in requests:
        on_the_way = request["arrival_time"] - request["queued_ts"]
        first = on_the_way + request["first_token_ts"]
        last = on_the_way + request["last_token_ts"]
        rows.append((request["arrival_time"], first, last, request["output_toks"]))
    return figures(rows)


def predicted(cost: CostModel, kept: slice) -> dict[str, float]:
    """The same of a simulation of the run."""
    scenario = Scenario(
        RankLimits(RANKS, SLOTS, BUDGET),
        cost,
        Workload(
            None,
            trace=RUN / "requests.jsonl",
            timed_trace=TimedTrace(
                label_timestamp="arrival_time",
                label_input_length="input_toks",
                label_output_length="output_toks",
            ),
        ),
        ClientTraffic(self_timed=True),
        Frontend(serial_seconds=0.002, jitter_seconds=0.002),
        async_scheduling=True,
    )
    requests = simulate(scenario, "off").requests[kept]
    return figures([(r.sent, r.first_token, r.done, r.output_len) for r in requests])


def main() -> None:
    """Fits, predicts, and writes bench/results/real_run.json."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    lines = (RUN / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    requests = sorted(map(json.loads, lines), key=lambda r: r["queued_ts"])
    steps = read_steps()
    half = len(requests) // 2
    kept = slice(half, None)
    real = measured(requests[kept])
    first_kept = requests[half]["queued_ts"] - requests[0]["queued_ts"]
    spans = {
        "until the first request of the second half": first_kept,
        "the first half of the time": steps[-1].end_s / 2,
    }
    cases = []
    for title, until in spans.items():
        fitted = fit([step.sample for step in steps if step.end_s <= until])
        guesses = [predicted(cost, kept) for cost in fitted.costs]
        errors = [{name: g[name] / real[name] - 1 for name in real} for g in guesses]
        cases.append({"title": title, "fit": asdict(fitted), "errors": errors})
        print(title, f"{fitted.steps} steps", errors)
    document = {
        "command": "python bench/real_run.py",
        "versions": versions() | {"balance": "off"},
        "requests": len(requests),
        "steps": len(steps),
        "measured": real,
        "cases": cases,
    }
    write_json(ROOT / "bench" / "results" / "real_run.json", document)


if __name__ == "__main__":
    main()
