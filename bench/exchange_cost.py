# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Times the exchange of rows at 2, 4 and 8 ranks.

    build/env/reference/bin/python bench/exchange_cost.py --output FILE

Run it with the interpreter of the environment that the reference wheel is installed
in; `hook_cost.py` times the rest of the hook. Three ways to gather are compared, in
turn: torch's blocking call; the call of the product, which can time out; and one that
is started before 1 ms of other work and waited for afterwards. The ranks are processes
of this machine over the loopback interface; with fewer processors than ranks the
figures are those of the operating system's scheduler, not of gloo. Nothing else should
run on the machine meanwhile.
"""

import argparse
import json
import multiprocessing
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.utils.network_utils import get_open_port
from vllm.v1.core.sched.balance.exchange import RowExchange
from vllm.v1.core.sched.balance.rows import Row

RANKS = (2, 4, 8)
STEP_US = 36_000
"""The shortest step of the fitted deployment, in which nobody prefills: the exchange is
put in relation to it."""
BLOCK, BLOCKS = 50, 8
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


def run_rank(rank: int, ranks: int, port: int, results: Any) -> None:
    """Body of a rank's process."""
    torch.set_num_threads(1)
    group = stateless_init_torch_distributed_process_group(
        "127.0.0.1", port, rank, ranks, "gloo"
    )
    calls = variants(group)
    medians: dict[str, list[float]] = {name: [] for name in calls}
    for block in range(BLOCKS + 1):
        for name, call in calls.items():
            times = [call() for _ in range(BLOCK)]
            if block:  # the first one warms up
                medians[name].append(statistics.median(times) * 1e6)
    dist.barrier(group=group)
    if rank == 0:
        results.put(medians)


def gathers(ranks: int) -> dict[str, dict[str, float]]:
    """Microseconds on rank 0: median of the blocks' medians, smallest and largest."""
    context = multiprocessing.get_context("fork")
    results, port = context.Queue(), get_open_port()
    processes = [
        context.Process(target=run_rank, args=(rank, ranks, port, results))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    medians = results.get(timeout=300)
    for process in processes:
        process.join()
    return {name: spread(times) for name, times in medians.items()}


def spread(times: list[float]) -> dict[str, float]:
    """Median, smallest and largest, in microseconds, and the share of a step."""
    return {
        "median_us": round(statistics.median(times), 1),
        "min_us": round(min(times), 1),
        "max_us": round(max(times), 1),
        "percent_of_36_ms_step": round(100 * statistics.median(times) / STEP_US, 2),
    }


def main() -> None:
    """Prints the figures, and writes them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "command": shlex.join(["python", *sys.argv]),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "load_average_before": [round(load, 1) for load in os.getloadavg()],
        "torch": torch.__version__,
        "blocks": BLOCKS,
        "calls_per_block": BLOCK,
        "gather": {},
    }
    for ranks in RANKS:
        report["gather"][ranks] = gathers(ranks)
        for name, figures in report["gather"][ranks].items():
            print(f"{ranks} ranks, {name}: {figures}")
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
