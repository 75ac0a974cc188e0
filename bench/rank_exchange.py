"""Ranks that exchange rows step after step, and nothing else, each in its own process.

::

    build/env/reference/bin/python bench/rank_exchange.py [RANKS ...]
"""

import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

import torch
import torch.distributed as dist
from vllm.v1.core.sched.balance.group.exchange import RowExchange
from vllm.v1.core.sched.balance.policies.rows import Row

KINDS = ("exchange", "all-reduce")
"""Of rows, as balance does; of one number, as upstream's end of a wave does."""

STEP_S = 0.02
"""Of the emulated device, after which the ranks come to the exchange."""

_WARM_UP = 20
_JITTER_S = 0.0005
"""Ranks come that much apart, at most."""


def ranks_that_fit() -> list[int]:
    """Powers of two up to four ranks a core: beyond one a core they share cores."""
    cores = len(os.sched_getaffinity(0))
    return [n for n in (2, 4, 8, 16, 32, 64) if n <= 4 * cores]


def microseconds(ranks: int, calls: int) -> dict[str, list[float]]:
    """How long the last rank that comes waits, by kind, in microseconds.

    The others wait for that rank, whatever is exchanged.

    Args:
        ranks: processes, on this machine, over loopback.
        calls: of each kind.

    Raises:
        BrokenProcessPool: a rank ended before the others.
    """
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(ranks, spawn) as pool,
    ):
        each_rank = (range(ranks), repeat(ranks), repeat(calls), repeat(folder))
        spans = list(pool.map(_rank, *each_rank))
    return {
        kind: [
            1e6 * (max(end for _, end in step) - max(start for start, _ in step))
            for step in zip(*(rank[kind][_WARM_UP:] for rank in spans), strict=True)
        ]
        for kind in KINDS
    }


def _rank(
    rank: int, ranks: int, calls: int, folder: str
) -> dict[str, list[tuple[float, float]]]:
    """By kind, when each call began and ended, by the machine's one clock."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    group = dist.distributed_c10d._get_default_group()
    exchange = RowExchange(timeout=60.0)
    row = Row(**dict.fromkeys(Row._fields, 1))
    number = torch.ones(1, dtype=torch.int32)
    actions: tuple[Callable[[int], object], ...] = (
        lambda step: exchange.gather(row._replace(step=step), group, lambda: None),
        lambda step: dist.all_reduce(number, group=group),
    )
    rng = random.Random(rank)
    spans: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for step in range(calls + _WARM_UP):
        for kind, act in zip(KINDS, actions, strict=True):
            time.sleep(STEP_S + rng.random() * _JITTER_S)
            start = time.monotonic()
            act(step)
            spans[kind].append((start, time.monotonic()))
    dist.barrier()
    exchange.close(None)
    dist.destroy_process_group()
    return spans


if __name__ == "__main__":
    for size in map(int, sys.argv[1:]) if sys.argv[1:] else ranks_that_fit():
        for what, times in microseconds(size, 200).items():
            ordered = sorted(times)
            tenths = [ordered[len(ordered) * tenth // 10] for tenth in (1, 5, 9)]
            print(f"{size} ranks, {what}: {tenths[1]:.0f} µs", tenths, flush=True)
