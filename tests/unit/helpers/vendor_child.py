"""Run `vendor` for vllm and die of SIGKILL at a step; its process is the test's own.

Arguments: the root, the step, and `exchange` or `rename` for how to swap folders.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from balance_tools.paths import Paths
from balance_tools.upstream.lock import load_lock
from balance_tools.vendoring import swap
from balance_tools.vendoring.vendor import Effects, vendor


def main(root: str, last_step: str, how: str) -> None:
    def step(name: str) -> None:
        if name == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    paths = Paths(Path(root))
    exchange = swap.exchange if how == "exchange" else cannot_exchange
    effects = Effects(step=step, exchange=exchange)
    vendor(paths, load_lock(paths.lock), ["vllm"], effects=effects)


def cannot_exchange(one: Path, other: Path) -> bool:
    """What `swap.exchange` answers where the kernel has no such call."""
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
