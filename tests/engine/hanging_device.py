"""A scheduler for `--scheduler-cls` whose rank hangs as a file tells it."""

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.parallel_state import get_dp_group
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from vllm_balance.reference.emulated_device import EmulatedDevice

FOLDER = "HANGING_FOLDER"
"""The variable with the folder of the files that tell a rank to hang."""

KERNEL, CALL, GLOO = "endless kernel", "call without end", "gloo"
"""The files: rank 1 hangs in the first two until the file goes, all in the last."""


def hang(rank: int) -> None:
    """Returns at once if no file is there."""
    folder = Path(os.environ[FOLDER])
    while rank == 1 and (folder / KERNEL).exists():
        # Small enough that no other thread computes a part, for which it would wait.
        torch.ones(1 << 10).sum()
    while rank == 1 and (folder / CALL).exists():
        time.sleep(0.5)  # to wake up often would look like work on a busy machine
    if (folder / GLOO).exists():
        # What the others send is lost.
        dist.recv(torch.zeros(1), group=get_dp_group().cpu_group, tag=7)


class Hanging(AsyncScheduler):
    """The device of its rank hangs, in steps with requests and in those without."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        start, rank = EmulatedDevice._start_step, get_dp_group().rank_in_group

        def start_step(device: EmulatedDevice, *load: int) -> None:
            hang(rank)
            start(device, *load)

        EmulatedDevice._start_step = start_step
