# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Times what balance adds to a step of a busy rank, without the network.

    python bench/hook_cost.py --output bench/results/hook-cost.json

Needs the interpreter of an environment with this vLLM. A real scheduler has 60 of
64 slots taken and 10,000 requests waiting; its row stands for those of the other ranks.
The gate measures, checks the rows' checksums, decides and applies; `schedule` asks it
for every waiting request that it looks at. `measuring_cost.py` has other states.
Nothing else should run on the machine meanwhile.
"""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import record
from vllm.benchmarks.dp_balance.fingerprint import policies_fingerprint
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.balance.gate import BalanceGate
from vllm.v1.core.sched.balance.group.wire import decode, encode
from vllm.v1.core.sched.balance.policies.by_name import POLICIES, create_policy
from vllm.v1.core.sched.balance.policies.rows import Row, Snapshot
from vllm.v1.core.sched.balance.stats import BalanceStats

from vllm_balance.reference import tiny_models

sys.path.append(str(Path(__file__).parents[1] / "tests" / "engine"))

from bare_schedulers import BLOCK_SIZE, make_request, make_scheduler

RUNNING, WAITING = 60, 10_000
STEP_US = 36_000
"""A decode step of the published run (DeepSeek-V3.1, 4 ranks of 32)."""


def busy_scheduler(model: Path) -> Any:
    """A scheduler with four free slots, on a tiny model that is never run."""
    config = EngineArgs(
        model=str(model),
        max_num_seqs=RUNNING + 4,
        max_num_batched_tokens=4096,
        max_model_len=4096,
        block_size=BLOCK_SIZE,
        skip_tokenizer_init=True,
        enforce_eager=True,
        distributed_executor_backend="uni",
        enable_prefix_caching=False,
        data_parallel_size=2,
        data_parallel_balance="cap",
    ).create_engine_config()
    scheduler = make_scheduler(config, num_blocks=20_000)
    for number in range(RUNNING + WAITING):
        if number == RUNNING:
            scheduler.schedule()
        scheduler.add_request(make_request(str(number), 100, 2000))
    return scheduler


class OwnRow:
    """Instead of the gather: every rank sent what this one did."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def begin_step(self) -> None:
        """As `RowExchange.begin_step`."""

    def gather(self, row: Row, group: object, tell_clients: object) -> Snapshot:
        """As `RowExchange.gather`."""
        return Snapshot.from_rows(decode([encode(row)] * self._ranks))

    def rest(self, wave: int, step: int) -> None:
        """As `RowExchange.rest`."""

    def close(self, error: BaseException | None) -> None:
        """As `RowExchange.close`."""


def measure(scheduler: Any, policy: str, ranks: int, calls: int) -> dict[str, Any]:
    """Microseconds of the gate per step: median, and the spread of the calls."""
    gate = BalanceGate(
        scheduler,
        partial(create_policy, policy),
        OwnRow(ranks),
        BalanceStats(policy=policy),
    )
    waiting = list(scheduler.waiting)
    times = []
    for step in range(calls):
        start = time.perf_counter_ns()
        gate.exchange(None, 0, step, active=True, tell_clients=sys.exit)
        for request in waiting[:4]:
            if not gate.holds(request):
                gate.clip(request, request.num_tokens, 0)
        times.append((time.perf_counter_ns() - start) / 1e3)
        gate.take_stats()
    figures = record.spread(times[calls // 10 :])
    share = round(figures["median_us"] / STEP_US, 5)
    return {
        "policy": policy,
        "ranks": ranks,
        **figures,
        "share_of_a_36_ms_step": share,
    }


def main() -> None:
    """Prints a table, and writes the results if asked to."""
    arguments = record.parser(__doc__, calls=3000).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scheduler = busy_scheduler(tiny_models.make("moe", Path(folder)))
    results = [
        measure(scheduler, policy, ranks, arguments.calls)
        for policy in POLICIES
        for ranks in (2, 4, 8, 64)
    ]
    print(f"{'policy':10} {'ranks':>5} {'median µs':>10} {'p90 µs':>8} {'share':>8}")
    for row in results:
        print(
            f"{row['policy']:10} {row['ranks']:5} {row['median_us']:10} "
            f"{row['p90_us']:8} {100 * row['share_of_a_36_ms_step']:7.2f}%"
        )
    record.write(arguments, results, policies_fingerprint())


if __name__ == "__main__":
    main()
