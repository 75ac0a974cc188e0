"""Calibrates on one half of a real run and predicts the other.

The run is public (bench/traces/real_run): vLLM 0.19, two data parallel ranks, balance
off. It has four times per request and no steps, so these are reconstructed first::

    pip install scipy
    python bench/real_run.py

Tokens leave a rank at the end of a step, so times of events that are less than 5 ms
apart are one step boundary. How many steps lie between two boundaries follows from the
times and from the lengths of the answers, by a mixed integer program: a request takes
one step less than it has output tokens from its first to its last token. Which rank had
a request is not in the data: decodes are taken as shared evenly, and prompts that end
together as dealt to the rank with the fewest prompt tokens.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix
from vllm.benchmarks.dp_balance.rank.engine import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic, Frontend
from vllm.benchmarks.dp_balance.requests.traces import TimedTrace
from vllm.benchmarks.dp_balance.results import versions, write_json
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload, simulate
from vllm.benchmarks.dp_balance.step_time.fit import Fit, fit
from vllm.benchmarks.dp_balance.step_time.model import CostModel
from vllm.benchmarks.dp_balance.step_time.steps import StepSample

ROOT = Path(__file__).parent
RUN = ROOT / "traces" / "real_run"
RANKS, SLOTS, BUDGET = 2, 128, 2048
SAME_BOUNDARY_SECONDS = 5e-3
DECODES = (0, 1, 2, 4, 8, 14, 20, 50, 100, 138, 256)
DECODE_MS = (7.0, 7.3, 9, 13, 17, 21, 24.4, 28.5, 34, 37.6, 43.7)
"""First guess of a step's time by the requests that decode; the fit replaces it."""
PREFILL_SECONDS, PROMPT_TOKEN_SECONDS = 18e-3, 33e-6
"""First guess of what a prefill adds."""
FIRST_BOUNDARIES = 3
"""They are left out: a first step also warms up."""

Array = NDArray[np.float64]
Request = dict[str, Any]


@dataclass(frozen=True)
class Boundaries:
    """Times at which steps ended, and the events of the requests as their numbers."""

    times: Array
    scheduled: list[int]
    first: list[int]
    last: list[int]


def boundaries(requests: Sequence[Request]) -> Boundaries:
    """Joins events that are of one step boundary."""
    start = requests[0]["queued_ts"]
    names = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    events = sorted(
        (request[name] - start, name, index)
        for index, request in enumerate(requests)
        for name in names
    )
    times: list[float] = []
    previous = -1.0
    number: dict[tuple[str, int], int] = {}
    for time, name, index in events:
        if not times or time - previous >= SAME_BOUNDARY_SECONDS:
            times.append(time)
        previous = time
        number[name, index] = len(times) - 1
    columns = [[number[name, i] for i in range(len(requests))] for name in names[1:]]
    return Boundaries(np.array(times), *columns)


def guessed_prefill(requests: Sequence[Request], found: Boundaries) -> Array:
    """Seconds that prefills add to each interval, as a first guess."""
    extra = np.zeros(len(found.times) - 1)
    longest: dict[int, int] = {}
    for request, boundary in zip(requests, found.first, strict=True):
        longest[boundary] = max(longest.get(boundary, 0), request["input_toks"])
    for boundary, tokens in longest.items():
        interval = boundary - 1
        while tokens > 0 and interval >= 0:  # earlier chunks go back in time
            chunk = tokens % BUDGET or BUDGET
            extra[interval] += PREFILL_SECONDS + PROMPT_TOKEN_SECONDS * chunk
            tokens -= chunk
            interval -= 1
    return extra


def step_numbers(requests: Sequence[Request], found: Boundaries) -> NDArray[np.int64]:
    """The number of the step that ends at each boundary."""
    first, last = np.array(found.first), np.array(found.last)
    intervals = len(found.times) - 1
    decoding = np.array([np.sum((first <= j) & (last > j)) for j in range(intervals)])
    step = np.interp(decoding, DECODES, DECODE_MS) / 1e3
    rest = np.diff(found.times) - guessed_prefill(requests, found)
    rows: list[dict[int, float]] = []
    low: list[float] = []
    high: list[float] = []

    def constrain(row: dict[int, float], least: float, most: float) -> None:
        rows.append(row)
        low.append(least)
        high.append(most)

    for j in range(intervals):
        error = intervals + 1 + j
        constrain({j + 1: step[j], j: -step[j], error: 1}, rest[j], np.inf)
        constrain({j + 1: -step[j], j: step[j], error: 1}, -rest[j], np.inf)
        constrain({j + 1: 1, j: -1}, 1, np.inf)
    for index, request in enumerate(requests):
        steps = request["output_toks"] - 1
        if first[index] != last[index]:
            constrain({last[index]: 1, first[index]: -1}, steps, steps)
        if found.scheduled[index] != first[index]:
            constrain({first[index]: 1, found.scheduled[index]: -1}, 1, 8)
    entries = [(r, c, v) for r, row in enumerate(rows) for c, v in row.items()]
    r, c, v = zip(*entries, strict=True)
    variables = 2 * intervals + 1
    whole = intervals + 1
    upper = np.r_[np.full(whole, 4000.0), np.full(intervals, 2.0)]
    upper[0] = 0
    solved = milp(
        np.r_[np.zeros(whole), np.ones(intervals)],
        constraints=LinearConstraint(
            coo_matrix((v, (r, c)), shape=(len(rows), variables)).tocsr(), low, high
        ),
        integrality=np.r_[np.ones(whole), np.zeros(intervals)],
        bounds=Bounds(np.zeros(variables), upper),
        options={"time_limit": 120, "mip_rel_gap": 1e-3},
    )
    if solved.x is None:
        raise SystemExit(f"error: {RUN}: no sequence of steps fits ({solved.message}).")
    numbers: NDArray[np.int64] = np.round(solved.x[:whole]).astype(np.int64)
    return numbers


def step_samples(
    requests: Sequence[Request], found: Boundaries, numbers: NDArray[np.int64]
) -> tuple[list[StepSample], list[float]]:
    """The load of every step, and the time at which its interval ends."""
    count = int(numbers[-1]) + 1
    prefill, attended = np.zeros((count, RANKS)), np.zeros((count, RANKS))
    decodes, context = np.zeros(count), np.zeros(count)
    order = sorted(range(len(requests)), key=lambda i: (found.first[i], i))
    for index in order:
        prompt = requests[index]["input_toks"]
        step, last = numbers[found.first[index]], numbers[found.last[index]]
        decodes[step + 1 : last + 1] += 1
        context[step + 1 : last + 1] += prompt + np.arange(last - step)
        rank = int(prefill[step].argmin())
        left = prompt
        while left > 0 and step >= 0:  # the last chunk ends with the first token
            chunk = min(left, BUDGET if left < prompt else prompt % BUDGET or BUDGET)
            prefill[step, rank] += chunk
            attended[step, rank] += chunk * (left - chunk / 2)
            left -= chunk
            step -= 1
    samples: list[StepSample] = []
    ends: list[float] = []
    for j in range(FIRST_BOUNDARIES, len(found.times) - 1):
        seconds = float(found.times[j + 1] - found.times[j])
        for step in range(numbers[j] + 1, numbers[j + 1] + 1):
            is_last = step == numbers[j + 1]
            samples.append(
                StepSample(
                    seconds if is_last else 0.0,
                    tuple(prefill[step]),
                    (decodes[step] / RANKS,) * RANKS,
                    (context[step] / RANKS,) * RANKS,
                    tuple(attended[step]),
                    bool(is_last),
                )
            )
            ends.append(float(found.times[j + 1]))
    return samples, ends


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


def measured(requests: Sequence[Request]) -> dict[str, float]:
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
    """Reconstructs, fits, predicts, and writes bench/results/real_run.json."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.parse_args()
    lines = (RUN / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    requests = sorted(map(json.loads, lines), key=lambda r: r["queued_ts"])
    found = boundaries(requests)
    print(f"{len(found.times)} boundaries; how many steps between them (2 minutes)?")
    numbers = step_numbers(requests, found)
    samples, ends = step_samples(requests, found, numbers)
    half = len(requests) // 2
    kept = slice(half, None)
    real = measured(requests[kept])
    first_kept = requests[half]["queued_ts"] - requests[0]["queued_ts"]
    spans = {
        "until the first request of the second half": first_kept,
        "the first half of the time": float(found.times[-1]) / 2,
    }
    cases = []
    for title, until in spans.items():
        used = [
            sample for sample, end in zip(samples, ends, strict=True) if end <= until
        ]
        fitted: Fit = fit(used)
        errors = []
        for cost in fitted.costs:
            guess = predicted(cost, kept)
            errors.append({name: guess[name] / real[name] - 1 for name in real})
        cases.append({"title": title, "fit": asdict(fitted), "errors": errors})
        print(title, f"{fitted.steps} steps", errors)
    document = {
        "command": "python bench/real_run.py",
        "versions": versions() | {"balance": "off"},
        "requests": len(requests),
        "steps": int(numbers[-1]),
        "measured": real,
        "cases": cases,
    }
    write_json(ROOT / "results" / "real_run.json", document)


if __name__ == "__main__":
    main()
