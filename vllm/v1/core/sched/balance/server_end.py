# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Ends an API server that has lost its engines: clients get errors, nothing is left.

Upstream kills its engines at once when it is told to stop, and then takes down the
task that would have told the waiting requests. If no rank has answered them in between,
uvicorn waits without limit for streams that nobody feeds any more. It also notices
neither that the coordinator has ended, nor, in an API server that is not the first
process, that the first one has. And it exits with 0, so that nobody restarts it; with 1
where it was told to stop, if one of its forked ranks ends while it looks who else has
the port.

All of this is so with balance off, too, and so it is mended there.
"""

import asyncio
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

from vllm import envs
from vllm.logger import init_logger
from vllm.v1.core.sched.balance.watch import parent_is_gone

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

logger = init_logger(__name__)

_PERIOD_S = 0.25
_GRACE_S = 2.0
"""How long a client that does not read its answer may hold up the end."""

_watches: set[asyncio.Task[None]] = set()


def end_with_engines(llm: "AsyncLLM") -> None:
    """Ends the server when its engines have ended or must end.

    Called in the event loop of the server. In another program that has an `AsyncLLM`
    nothing is ended.
    """
    task = asyncio.create_task(_watch(llm))
    _watches.add(task)  # the loop keeps only a weak reference
    task.add_done_callback(_watches.discard)


async def _watch(llm: "AsyncLLM") -> None:
    missing, is_served = None, False
    loop = asyncio.get_running_loop()
    while not llm.errored:
        is_served = is_served or _is_served()
        # Twice in a row: where all processes are told to stop, the coordinator is the
        # first to go.
        before, missing = missing, _missing(llm)
        if before is not None and missing is not None and is_served:
            logger.error("Data parallel balance: %s. Ending the server.", missing)
            await loop.run_in_executor(None, partial(llm.shutdown, timeout=0))
            break
        await asyncio.sleep(_PERIOD_S)
    if not is_served:
        return
    manager = llm.engine_core.resources.engine_manager
    died = missing or getattr(manager, "failed_proc_name", None)
    status = 1 if died or llm.engine_core._finalizer.alive else 0
    llm.output_processor.propagate_error(llm.dead_error)
    if envs.VLLM_KEEP_ALIVE_ON_ENGINE_DEATH:
        return
    signal.raise_signal(signal.SIGTERM)  # its handler ends the server, once
    try:
        # They may still be naming the rank that was the cause.
        while any(each.is_alive() for each in getattr(manager, "processes", ())):
            await asyncio.sleep(_PERIOD_S)  # the manager ends them within 5 s
        await asyncio.sleep(_GRACE_S)
    except asyncio.CancelledError:  # the server has ended, and with it the loop
        if status:
            loop.call_soon(sys.exit, status)
        raise
    # Some client neither reads nor finishes its request.
    logger.warning("Data parallel balance: the last clients are cut off.")
    os._exit(status)


def is_of_this_server(pid: int) -> bool:
    """Whether the process is one of this server's, which fork may have left its socket.

    It ends together with this one, so that nobody can say more about it.
    """
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return True


def _is_served() -> bool:
    """Whether it is upstream's launcher that runs this loop."""
    tasks = asyncio.all_tasks()
    return any(getattr(t.get_coro(), "__name__", "") == "watchdog_loop" for t in tasks)


def _missing(llm: "AsyncLLM") -> str | None:
    """In words, the process without which the server cannot go on.

    None if it has all of them, or is stopping.
    """
    client = llm.engine_core
    if not client._finalizer.alive:
        return None
    if parent_is_gone():
        return "the process that started this API server has ended"
    coordinator = client.resources.coordinator
    if coordinator is not None and not coordinator.proc.is_alive():
        return (
            f"the coordinator (pid {coordinator.proc.pid}) has ended with exit code "
            f"{coordinator.proc.exitcode}, and without it no wave of requests begins"
        )
    return None
