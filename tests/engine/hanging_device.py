"""A scheduler for `--scheduler-cls` whose rank 1 hangs while a file is there."""

import os
import time
from pathlib import Path
from typing import Any

from vllm.distributed.parallel_state import get_dp_group
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from vllm_balance.reference.emulated_device import EmulatedDevice

FILE = "HANGING_FILE"
"""The variable with the path of the file."""


class Hanging(AsyncScheduler):
    """The device of rank 1 hangs, in steps with requests and in those without."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        start, rank = EmulatedDevice._start_step, get_dp_group().rank_in_group

        def start_step(device: EmulatedDevice, *load: int) -> None:
            while rank == 1 and Path(os.environ[FILE]).exists():
                time.sleep(0.5)
            start(device, *load)

        EmulatedDevice._start_step = start_step
