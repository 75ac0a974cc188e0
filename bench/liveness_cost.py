# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Times how long a rank takes to read the heartbeats of all others, once it must know.

    build/env/reference/bin/python bench/liveness_cost.py --output FILE

The store is that of a process group, in another process of this machine; the heartbeats
of all ranks are in it, and a third process renews each of them once per second.
Needs the interpreter of an environment with this vLLM.
"""

import multiprocessing
import time
from typing import Any

import record
import torch.distributed as dist
from vllm.benchmarks.dp_balance.fingerprint import policies_fingerprint
from vllm.v1.core.sched.balance.group.liveness import read_heartbeats

RANKS = (8, 64, 256, 1024)


def keep_store(port: Any, end: Any) -> None:
    """Body of the process of rank 0: has the store."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port.put(store.port)
    end.wait()


def beat(port: int, ranks: int, done: Any) -> None:
    """Body of a process that writes every rank's heartbeat once per second."""
    store = dist.PrefixStore("balance", dist.TCPStore("127.0.0.1", port))
    count, due = 0, time.monotonic()
    while not done.is_set():
        count += 1
        for rank in range(ranks):
            store.set(f"{rank}", f"{count} 3 {count}")
            due += 1 / ranks
            time.sleep(max(0.0, due - time.monotonic()))


def measure(ranks: int, calls: int) -> dict[str, Any]:
    """Microseconds of one reading of all heartbeats."""
    context = multiprocessing.get_context("fork")
    port, done, end = context.Queue(), context.Event(), context.Event()
    keeper = context.Process(target=keep_store, args=(port, end), daemon=True)
    keeper.start()
    number = port.get()
    others = context.Process(target=beat, args=(number, ranks, done), daemon=True)
    others.start()
    store = dist.PrefixStore("balance", dist.TCPStore("127.0.0.1", number))
    while len(read_heartbeats(store, ranks)) < ranks:
        time.sleep(0.1)
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        assert len(read_heartbeats(store, ranks)) == ranks
        times.append((time.perf_counter_ns() - start) / 1e3)
    done.set()
    others.join()
    end.set()
    keeper.join()
    return {"ranks": ranks, "way": "all heartbeats", **record.spread(times)}


def main() -> None:
    """Prints a table, and writes the results if asked to."""
    arguments = record.parser(__doc__, calls=200).parse_args()
    results = []
    for ranks in RANKS:
        results.append(measure(ranks, arguments.calls))
        print(results[-1], flush=True)
    record.write(arguments, results, policies_fingerprint())


if __name__ == "__main__":
    main()
