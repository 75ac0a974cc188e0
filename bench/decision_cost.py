# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Times one decision of each balance policy, in plain Python, without vllm.

    python bench/decision_cost.py --output bench/results/decision-cost.json

The snapshots are those of a busy server: most ranks decode, many have something
pending, and the adaptive policy has learned its costs, so that it takes its longest
way through. Nothing else should run on the machine meanwhile.
"""

import importlib.util
import random
import sys
import time
from pathlib import Path
from typing import Any

import record

FOLDER = Path(__file__).parents[1] / "vllm/v1/core/sched/balance"
RANKS = (4, 16, 64, 256, 1024)
SNAPSHOTS = 64
MAX_RUNNING, MAX_TOKENS = 32, 4096


def load_policies() -> Any:
    """The package of the policies, by its folder: importing vllm takes seconds."""
    spec = importlib.util.spec_from_file_location(
        "balance", FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["balance"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["balance"])
    return importlib.import_module("balance.policies.by_name")


def busy_rows(ranks: int, rng: random.Random) -> list[list[int]]:
    """Rows of one step, in the order of the fields of `Row`."""
    prefills = rng.random() < 0.2
    rows = []
    for _ in range(ranks):
        pending = rng.choice([0, 0, 1, 2, 5])
        age = rng.randrange(3_000_000) if pending else 0
        fields = {
            "wave": 0,
            "step": 0,
            "running": (running := rng.randint(20, MAX_RUNNING - 5)),
            "decoding": running,
            "waiting": pending,
            "pending": pending,
            "pending_tokens": pending * rng.randint(50, 3000),
            "held_steps": rng.randint(0, 50),
            "prefill_tokens": rng.randrange(MAX_TOKENS) if prefills else 0,
            "step_time_us": 900_000 if prefills else 45_000,
            "max_running": MAX_RUNNING,
            "max_tokens": MAX_TOKENS,
            "pending_age_us": age,
            "wait_us": age,
        }
        rows.append([fields[name] for name in ROW_FIELDS])
    return rows


def measure(name: str, ranks: int, calls: int) -> dict[str, float]:
    """Microseconds per decision: median, and the spread of the calls."""
    rng = random.Random(1)
    steps = [busy_rows(ranks, rng) for _ in range(SNAPSHOTS)]
    snapshots = [SNAPSHOT.from_rows(rows) for rows in steps]
    policy = POLICY.create_policy(name)
    for snapshot in snapshots:
        policy.decide(snapshot)
    times = []
    for call in range(calls):
        snapshot = snapshots[call % SNAPSHOTS]
        start = time.perf_counter_ns()
        policy.decide(snapshot)
        times.append((time.perf_counter_ns() - start) / 1e3)
    started = time.perf_counter_ns()
    for rows in steps:
        SNAPSHOT.from_rows(rows)
    from_rows = (time.perf_counter_ns() - started) / 1e3 / SNAPSHOTS
    return {
        **record.spread(times),
        "max_us": round(max(times), 2),
        "snapshot_from_rows_us": round(from_rows, 2),
    }


def main() -> None:
    """Prints a table, and writes the results if asked to."""
    arguments = record.parser(__doc__, calls=2000).parse_args()
    results = []
    print(f"{'policy':10} {'ranks':>6} {'median':>10} {'p10':>9} {'p90':>9}  µs")
    for name in POLICY.POLICIES:
        for ranks in RANKS:
            figures = measure(name, ranks, arguments.calls)
            results.append({"policy": name, "ranks": ranks, **figures})
            print(
                f"{name:10} {ranks:6} {figures['median_us']:10.1f} "
                f"{figures['p10_us']:9.1f} {figures['p90_us']:9.1f}"
            )
    record.write(arguments, results, record.tree_fingerprint())


POLICY = load_policies()
SNAPSHOT = sys.modules["balance.policies.rows"].Snapshot
ROW_FIELDS = SNAPSHOT._fields

if __name__ == "__main__":
    main()
