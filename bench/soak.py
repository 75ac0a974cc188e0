# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Runs a gate for a million steps and fails if the memory of the process grows.

    build/env/reference/bin/python bench/soak.py --steps 1000000 --output FILE

The scheduler, the gate, its policy and the exchange are the product's, the exchange
over a real group of one rank. Nobody takes the reports: so it is on a rank that only
runs dummy batches. Needs the interpreter of an environment with this vLLM.
"""

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import record
from hook_cost import busy_scheduler
from tqdm import tqdm
from vllm.benchmarks.dp_balance.fingerprint import policies_fingerprint
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.utils.network_utils import get_open_port
from vllm.v1.core.sched.balance.gate import BalanceGate
from vllm.v1.core.sched.balance.group.exchange import RowExchange
from vllm.v1.core.sched.balance.policies.by_name import POLICIES, create_policy
from vllm.v1.core.sched.balance.stats import BalanceStats

from vllm_balance.reference import tiny_models

GROWTH_MB = 1.0
"""More is a leak. Statistics once took 107 bytes a step: 1.8 MB in the nine tenths of
20,000 steps that are measured, 92 MB in those of a million."""


def resident_mb() -> float:
    """Memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run(policy: str, steps: int) -> dict[str, object]:
    """Memory after a tenth of the steps, and how much it has grown at the end."""
    with tempfile.TemporaryDirectory() as folder:
        scheduler = busy_scheduler(tiny_models.make("moe", Path(folder)))
    group = stateless_init_torch_distributed_process_group(
        "127.0.0.1", get_open_port(), 0, 1, "gloo"
    )
    exchange = RowExchange(60.0)
    gate = BalanceGate(
        scheduler,
        partial(create_policy, policy),
        exchange,
        BalanceStats(policy=policy),
    )
    waiting = list(scheduler.waiting)
    settled = 0.0
    for step in tqdm(range(steps), desc=policy, mininterval=5):
        gate.exchange(group, 0, step, active=True, tell_clients=sys.exit)
        for request in waiting[:2]:
            if not gate.holds(request):
                gate.clip(request, request.num_tokens, 0)
        if step == steps // 10:
            settled = resident_mb()
    growth = resident_mb() - settled
    exchange.close(None)
    return {
        "policy": policy,
        "steps": steps,
        "resident_mb": round(settled, 1),
        "growth_mb": round(growth, 2),
    }


def main() -> None:
    """Prints the growth of each policy, and writes it if asked to."""
    parser = record.parser(__doc__, calls=1)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--policy", nargs="+", default=["adaptive"], choices=POLICIES)
    arguments = parser.parse_args()
    results = []
    for policy in arguments.policy:
        results.append(run(policy, arguments.steps))
        print(results[-1])
    record.write(arguments, results, policies_fingerprint())
    grown = [f"{r['policy']} {r['growth_mb']} MB" for r in results]
    if any(float(str(r["growth_mb"])) > GROWTH_MB for r in results):
        sys.exit(f"error: memory grew by {', '.join(grown)}, {GROWTH_MB} MB at most")


if __name__ == "__main__":
    main()
