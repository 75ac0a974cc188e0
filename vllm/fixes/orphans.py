# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Ends processes whose parent has ended, and keeps its signals out of forked ones."""

import multiprocessing
import os
import signal
import threading
import time
from functools import cache

from vllm.logger import init_logger
from vllm.utils.system_utils import kill_process_tree

logger = init_logger(__name__)


def end_with_parent() -> None:
    """From now on this process and its own end when its parent has ended.

    A front-end that is killed tells nobody. Its ranks and its coordinator, which
    `multiprocessing` started, would live on with their memory, and forked ones with the
    socket on which clients connect. Neither a pipe nor a signal tells a parent's death
    reliably: processes that the parent forks later hold the write ends of earlier
    pipes, and the kernel's signal follows the thread that forked.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == parent.pid:
            time.sleep(0.5)
        logger.error(
            "Data parallel balance: the process that started %s (pid %d) has ended "
            "without stopping it. Ending it.",
            multiprocessing.current_process().name,
            os.getpid(),
        )
        kill_process_tree(os.getpid())

    threading.Thread(target=watch, daemon=True).start()


@cache
def reset_wakeup_fd_in_children() -> None:
    """Makes processes that are forked from now on forget this one's event loop.

    It hears of signals through a descriptor, which `fork` copies. When a rank has died,
    the front-end ends the other engines and the coordinator by SIGTERM; with the copy
    it takes each of these for a SIGTERM of its own, stops listening to its engines, and
    waits for clients who wait for answers that nobody gives any more.
    """
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
