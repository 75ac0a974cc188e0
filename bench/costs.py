"""Times what balance adds to a step of a rank.

::

    build/env/reference/bin/python bench/costs.py [PART ...] [--output bench/results]

Needs the interpreter of an environment with this vLLM; nothing else should run on the
machine meanwhile. The parts:

- decision: a policy decides on the rows of a busy server.
- measuring: a rank measures itself after a step, with 10,000 requests waiting.
- dispatch: the front-end's event loop hashes a prompt, and sends short requests.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import busy_scheduler
from tqdm import tqdm
from vllm.benchmarks.dp_balance.fingerprint import policies_fingerprint
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.balance.dispatch import TokenDispatch
from vllm.v1.core.sched.balance.front_end import BalanceDispatch, PromptHasher
from vllm.v1.core.sched.balance.group.wire import encode
from vllm.v1.core.sched.balance.measure.queues import backlog_of
from vllm.v1.core.sched.balance.policies.decision import Decision
from vllm.v1.core.sched.balance.policies.registry import POLICIES, create_policy
from vllm.v1.core.sched.balance.policies.rows import Row, Snapshot
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core_client import DPLBAsyncMPClient

Result = dict[str, Any]

# ---- decision


def busy_rows(ranks: int, rng: random.Random) -> list[Row]:
    """Most ranks decode, many have something pending."""
    prefills = rng.random() < 0.2
    rows = []
    for _ in range(ranks):
        pending = rng.choice([0, 0, 1, 2, 5])
        age = rng.randrange(3_000_000) if pending else 0
        running = rng.randint(20, 27)
        row = Row(
            wave=0,
            step=0,
            running=running,
            decoding=running,
            waiting=pending,
            pending=pending,
            pending_tokens=pending * rng.randint(50, 3000),
            held_steps=rng.randint(0, 50),
            prefill_tokens=rng.randrange(4096) if prefills else 0,
            step_time_us=900_000 if prefills else 45_000,
            max_running=32,
            max_tokens=4096,
            pending_age_us=age,
            wait_us=age,
            pending_attended=pending * rng.randint(1250, 4_500_000),
            prefill_attended=rng.randrange(8_000_000) if prefills else 0,
        )
        rows.append(row)
    return rows


def decision(calls: int) -> list[Result]:
    """The policy has seen each snapshot, so that `adaptive` has learned its costs."""
    results = []
    for name in POLICIES:
        for ranks in (4, 16, 64, 256, 1024):
            rng = random.Random(1)
            snapshots = [Snapshot.from_rows(busy_rows(ranks, rng)) for _ in range(64)]
            policy = create_policy(name)
            for snapshot in snapshots:
                policy.decide(snapshot)
            times = []
            for call in range(calls):
                snapshot = snapshots[call % len(snapshots)]
                start = time.perf_counter_ns()
                policy.decide(snapshot)
                times.append(us_since(start))
            results.append({"policy": name, "ranks": ranks, **spread(times)})
    return results


# ---- measuring

GOAL_US = 150.0
HOLD = Decision(admit=False, prefill_budget=0, reason="benchmark")


def measuring(calls: int) -> list[Result]:
    """All that happens for the row before it is sent, and the backlog."""
    results = []
    for name, state in busy_scheduler.STATES.items():
        scheduler = busy_scheduler.make(state)
        gate = scheduler.balance_gate
        times, row = [], None
        for step in range(calls):
            gate.apply(HOLD)
            free_slots = busy_scheduler.SLOTS - state.running
            for request in islice(scheduler.waiting, free_slots):
                gate.holds(request)
            start = time.perf_counter_ns()
            row = gate.measure(0, step, float(step), float(step))
            encode(row)
            backlog_of(scheduler)
            times.append(us_since(start))
            for _ in range(state.turnover):
                # Another request comes to the head of the queue.
                head = scheduler.waiting.popleft()
                scheduler.waiting.insert(busy_scheduler.LONG - 1, head)
        assert row is not None
        found = {"state": name, "prompt": busy_scheduler.PROMPT, "goal_us": GOAL_US}
        found |= {"pending": row.pending, "pending_tokens": row.pending_tokens}
        results.append({**found, **spread(times[calls // 10 :])})
    return results


# ---- dispatch

SHORT, IN_FLIGHT = 100, 256
"""Prompt tokens of a request, and requests in flight."""


def request(name: str, tokens: Sequence[int]) -> EngineCoreRequest:
    """A request for one token, as it gets to the client."""
    sampling = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
    empty = dict.fromkeys(("mm_features", "pooling_params", "lora_request"))
    empty |= dict.fromkeys(("cache_salt", "data_parallel_rank"))
    return EngineCoreRequest(
        name, list(tokens), sampling_params=sampling, arrival_time=0.0, **empty
    )


def choice(ranks: int, calls: int, dispatch: BalanceDispatch | None) -> list[float]:
    """Microseconds of a client's hooks, from the choice of a rank to the end."""
    client: Any = object.__new__(DPLBAsyncMPClient)  # which would start engines
    found = {
        "core_engines": [b"%d" % rank for rank in range(ranks)],
        "lb_engines": [[0, 0] for _ in range(ranks)],
        "reqs_in_flight": {},
        "client_count": 1,
        "eng_start_index": 0,
        "balance_dispatch": dispatch,
    }
    vars(client).update(found)
    times = []
    requests = [request(f"{i}", range(i, i + SHORT)) for i in range(calls + IN_FLIGHT)]
    for number, new in enumerate(requests):
        done = requests[number - IN_FLIGHT].request_id
        first = EngineCoreOutputs(outputs=[EngineCoreOutput(done, [7])])
        last = EngineCoreOutputs(finished_requests={done})
        start = time.perf_counter_ns()
        client.get_core_engine_for_request(new)
        if dispatch is not None:
            dispatch.sent(new)
        for outputs in (first, last) if number >= IN_FLIGHT else ():
            with contextlib.suppress(StopIteration):
                client.process_engine_outputs(client, outputs).send(None)
        times.append(us_since(start))
    return times[IN_FLIGHT:]


HASHED = 100_000
"""Prompt tokens of a long request."""


def dispatch(calls: int) -> list[Result]:
    """Per 10,000 tokens, and per short request, also with vLLM's own."""
    hasher, times = PromptHasher(16), []
    for number in range(calls // 100):
        long = request("long", range(number, number + HASHED))
        start = time.perf_counter_ns()
        hasher.keys(long)
        times.append(us_since(start) * 10_000 / HASHED)
    results: list[Result] = [{"of": "hashing 10,000 prompt tokens", **spread(times)}]
    for ranks in (4, 16, 64):
        own = BalanceDispatch(TokenDispatch(ranks, 64, 1, 0, 1000, 512), hasher)
        upstream = spread(choice(ranks, calls, None))
        ours = spread(choice(ranks, calls, own))
        found = {"upstream_us": upstream["median_us"], **ours}
        results.append({"of": f"a short request, {ranks} ranks", **found})
    return results


# ---- all


def us_since(start_ns: int) -> float:
    """Microseconds."""
    return (time.perf_counter_ns() - start_ns) / 1e3


def spread(times_us: Sequence[float]) -> dict[str, float]:
    """Median, first and ninth tenth of times in microseconds."""
    tenths = statistics.quantiles(times_us, n=10)
    return {
        "median_us": round(statistics.median(times_us), 2),
        "p10_us": round(tenths[0], 2),
        "p90_us": round(tenths[-1], 2),
    }


PARTS: dict[str, tuple[Callable[[int], list[Result]], int]] = {
    "decision": (decision, 2000),
    "measuring": (measuring, 600),
    "dispatch": (dispatch, 5000),
}
"""With the calls per figure."""


def write(path: Path, calls: int, results: list[Result]) -> None:
    """Writes what was run, on what, and what came out."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (x.partition(":")[2].strip() for x in lines if x.startswith("model name"))
    processor = next(names, platform.processor())
    document = {
        "command": shlex.join(["python", *sys.argv]),
        "python": platform.python_version(),
        "policies": policies_fingerprint(),
        "machine": f"{platform.machine()}, {processor}, {os.cpu_count()} of them",
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "calls": calls,
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Prints the figures of each part, and writes them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--calls", type=int, help="calls per figure")
    parser.add_argument("--output", type=Path, help="folder for the results")
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"{', '.join(unknown)}: no such part; choose {', '.join(PARTS)}")
    for name in tqdm(options.parts or PARTS, unit="part"):
        measure, usual = PARTS[name]
        calls = options.calls or usual
        results = measure(calls)
        for result in results:
            tqdm.write(f"{name}: {result}")
        if options.output:
            write(options.output / f"cost_{name}.json", calls, results)


if __name__ == "__main__":
    main()
