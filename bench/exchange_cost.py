# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Times the exchange of rows at 2, 4 and 8 ranks.

    build/env/reference/bin/python bench/exchange_cost.py --output FILE

Run it with the interpreter of the environment that the reference wheel is installed
in; `hook_cost.py` times the rest of the hook. Three ways to gather are compared, in
turn: a blocking all-gather; the product's all-to-all, which can time out; and one that
is started before 1 ms of other work and waited for afterwards. The ranks are processes
of this machine over the loopback interface; with fewer processors than ranks the
figures are those of the operating system's scheduler, not of gloo. Nothing else should
run on the machine meanwhile.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import record
import torch
import torch.distributed as dist
from vllm.benchmarks.dp_balance.fingerprint import policies_fingerprint
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.utils.network_utils import get_open_port
from vllm.v1.core.sched.balance.group.exchange import RowExchange
from vllm.v1.core.sched.balance.policies.rows import Row

RANKS = (2, 4, 8)
STEP_US = 36_000
"""The shortest step of the fitted deployment, in which nobody prefills: the exchange is
put in relation to it."""
BLOCK = 50
"""Calls of one way before the next one has its turn."""
WORK_S = 1e-3


def busy(seconds: float) -> None:
    """Stands for work between the start of a gather and the wait for it."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def variants(group: dist.ProcessGroup) -> dict[str, Callable[[], float]]:
    """Name: one exchange, which returns the seconds that it kept the rank."""
    row = Row(*range(len(Row._fields)))._replace(wave=0, step=0)
    exchange = RowExchange(timeout=60.0)
    sent = torch.zeros(len(row), dtype=torch.int64)
    received = torch.empty((group.size(), len(row)), dtype=torch.int64)
    views = list(received.unbind())

    def blocking() -> float:
        start = time.perf_counter()
        dist.all_gather(views, sent, group=group)
        return time.perf_counter() - start

    def product() -> float:
        start = time.perf_counter()
        exchange.gather(row, group, sys.exit)
        return time.perf_counter() - start

    def early() -> float:
        start = time.perf_counter()
        work = dist.all_gather(views, sent, group=group, async_op=True)
        begun = time.perf_counter() - start
        busy(WORK_S)
        start = time.perf_counter()
        work.wait(timedelta(seconds=60))
        return begun + time.perf_counter() - start

    def late() -> float:
        busy(WORK_S)
        return blocking()

    return {
        "blocking call": blocking,
        "product (with time-out)": product,
        "early start, late wait around 1 ms of work": early,
        "blocking call after 1 ms of work": late,
    }


def run_rank(rank: int, ranks: int, port: int, count: int, results: Any) -> None:
    """Body of a rank's process."""
    torch.set_num_threads(1)
    group = stateless_init_torch_distributed_process_group(
        "127.0.0.1", port, rank, ranks, "gloo"
    )
    calls = variants(group)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for block in range(-1, count // BLOCK):
        for name, call in calls.items():
            block_us = [call() * 1e6 for _ in range(BLOCK)]
            if block >= 0:  # the first one warms up
                times[name] += block_us
    dist.barrier(group=group)
    if rank == 0:
        results.put(times)


def measure(ranks: int, count: int) -> list[dict[str, Any]]:
    """Microseconds on rank 0, for each way to gather."""
    context = multiprocessing.get_context("fork")
    results, port = context.Queue(), get_open_port()
    processes = [
        context.Process(target=run_rank, args=(rank, ranks, port, count, results))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    times = results.get(timeout=300)
    for process in processes:
        process.join()
    rows = []
    for name, times_us in times.items():
        figures = record.spread(times_us)
        share = round(figures["median_us"] / STEP_US, 5)
        rows.append(
            {"ranks": ranks, "way": name, **figures, "share_of_a_36_ms_step": share}
        )
    return rows


def main() -> None:
    """Prints the figures, and writes them if asked to."""
    arguments = record.parser(__doc__, calls=400).parse_args()
    results = []
    for ranks in RANKS:
        for row in measure(ranks, arguments.calls):
            print(f"{row['ranks']} ranks, {row['way']}: {row['median_us']} µs")
            results.append(row)
    record.write(arguments, results, policies_fingerprint())


if __name__ == "__main__":
    main()
