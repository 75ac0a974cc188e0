# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Ends the processes of a server when the process that started them is gone.

A front-end that is killed tells nobody. Its ranks and its coordinator would live on,
with their memory, and forked ones with the socket on which clients connect.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.utils.system_utils import kill_process_tree

if TYPE_CHECKING:
    from vllm.config import ParallelConfig

logger = init_logger(__name__)

_PERIOD_S = 0.5


def parent_is_gone() -> bool:
    """Whether the process that started this one has ended.

    False in a process that `multiprocessing` did not start. vLLM forks or spawns, so
    the parent is the one that asked for the process.
    """
    parent = multiprocessing.parent_process()
    return parent is not None and os.getppid() != parent.pid


def end_if_orphaned() -> None:
    """Ends this process, and those that it started, if its parent has ended.

    Asks for the parent's pid, because no pipe or signal tells it surely: processes that
    the parent forks later hold the write ends of the earlier ones' pipes, and the
    kernel's signal on a parent's death means the thread that forked.
    """
    if not parent_is_gone():
        return
    logger.error(
        "Data parallel balance: the process that started %s (pid %d) has ended "
        "without stopping it. Ending it.",
        multiprocessing.current_process().name,
        os.getpid(),
    )
    kill_process_tree(os.getpid())


def _watch() -> None:
    while True:
        end_if_orphaned()
        time.sleep(_PERIOD_S)


class _WatchedContext:
    """A context of `multiprocessing` whose processes end with this one."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    # The name is that of multiprocessing.
    def Process(  # noqa: N802
        self, *, target: Callable[..., object], **options: Any
    ) -> Any:
        return self._context.Process(target=partial(_run, target), **options)


def _run(target: Callable[..., object], **arguments: Any) -> None:
    threading.Thread(target=_watch, daemon=True).start()
    target(**arguments)


def context_with_parent_watch(context: Any, parallel_config: "ParallelConfig") -> Any:
    """A context of `multiprocessing` whose processes end with this one.

    Args:
        context: the context of `multiprocessing` to start processes with.
        parallel_config: with balance off, the context itself is returned.
    """
    if parallel_config.data_parallel_balance == "off":
        return context
    return _WatchedContext(context)
