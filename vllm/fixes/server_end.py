# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Ends an API server that has lost its engines: clients get errors, nothing is left.

Upstream fails to do so in four ways:

- Told to stop, it kills its engines first, and then the task that would have told the
  waiting requests. Uvicorn waits without limit for their streams, which nobody feeds.
- It does not notice that its coordinator has ended; nor, in an API server that is not
  the first process, that the first one has; nor, without a rank of its own, that the
  ranks on other hosts have.
- It exits with 0 then, so that nothing restarts it.
- It exits with 1 where it was told to stop, if one of its forked ranks ends while it
  looks for another process at its port.

All of this is so with balance off, too, and is fixed there. A program that runs the
server in an event loop of its own is left alone.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

import psutil
import zmq
from vllm import envs
from vllm.logger import init_logger
from zmq.utils.monitor import parse_monitor_message

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import MPClient

logger = init_logger(__name__)

_PERIOD_S = 0.25
_GRACE_S = 2.0
"""How long a client that does not read its answer may hold up the end."""

_watches: set[asyncio.Task[None]] = set()

_parent: int | None = None
"""The process that started this server, if `multiprocessing` did so directly: not by
way of a fork server, or of another process that forks and may end."""


def timeout_of(parallel_config: "ParallelConfig") -> float:
    """Seconds that a rank, or a front-end without ranks, waits for the others.

    What the operator allows the collective calls on the CPU, or else what upstream
    allows a step of the model.
    """
    seconds = parallel_config.cpu_distributed_timeout_seconds
    return float(seconds or envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)


def begin_watch(ctx: zmq.Context, vllm_config: "VllmConfig") -> None:
    """Notes who started an API server, before anything takes time.

    If all engines are elsewhere, its sockets ask whether they live: ZeroMQ does, beside
    the processes' own threads. It closes a connection without an answer, well before
    ranks would give up, and `_watch` sees that.
    """
    global _parent
    if not _is_command():
        return
    parent = multiprocessing.parent_process()
    _parent = parent.pid if parent and parent.pid == os.getppid() else None
    parallel_config = vllm_config.parallel_config
    if parallel_config.data_parallel_size_local == 0:
        milliseconds = int(1000 * timeout_of(parallel_config))
        ctx.setsockopt(zmq.HEARTBEAT_IVL, milliseconds // 4)
        ctx.setsockopt(zmq.HEARTBEAT_TIMEOUT, milliseconds // 2)


def end_with_engines(llm: "AsyncLLM") -> None:
    """Ends the server when its engines have ended or must end."""
    if not _is_command():
        return
    task = asyncio.create_task(_watch(llm))
    _watches.add(task)  # the loop keeps only a weak reference
    task.add_done_callback(_ended)


def _ended(watch: asyncio.Task[None]) -> None:
    _watches.discard(watch)
    if not watch.cancelled() and (error := watch.exception()) is not None:
        logger.error(
            "Data parallel balance: nothing watches this server any more.",
            exc_info=error,
        )


async def _watch(llm: "AsyncLLM") -> None:
    missing, is_served = None, False
    loop = asyncio.get_running_loop()
    client = llm.engine_core
    # `begin_watch` has set some options where all engines are elsewhere.
    connections = _Connections(client) if client.ctx.sockopts else None
    manager = client.resources.engine_manager
    while not llm.errored:
        is_served = is_served or _is_served()
        # Twice in a row: where all processes are told to stop, the coordinator is the
        # first to go.
        before, missing = missing, _missing(llm, connections)
        if before is not None and missing is not None and is_served:
            logger.error("Data parallel balance: %s. Ending the server.", missing)
            await loop.run_in_executor(None, partial(llm.shutdown, timeout=0))
            break
        try:
            await asyncio.sleep(_PERIOD_S)
        except asyncio.CancelledError:  # the server has ended sooner than this saw why
            if is_served and _died(manager):
                _exit_with(1)
            raise
    if not is_served:
        return
    died = missing or _died(manager)
    status = 1 if died or client._finalizer.alive else 0
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
        _exit_with(status)
        raise
    # Some client neither reads nor finishes its request.
    logger.warning("Data parallel balance: the last clients are cut off.")
    os._exit(status)


def _died(manager: object) -> str | None:
    """The process that ended first, if it failed; the log names it.

    Ranks that were told to stop for it may not have noticed which it was.
    """
    name: str | None = getattr(manager, "failed_proc_name", None)
    if name:
        logger.error("Data parallel balance: %s was the first process to end.", name)
    return name


def _exit_with(status: int) -> None:
    if status:
        asyncio.get_running_loop().call_soon(sys.exit, status)


def _is_command() -> bool:
    """Whether a command of vLLM's has begun the loop in which the server now starts."""
    frame, names, starts = sys._getframe(), ("asyncio", "uvloop"), False
    caller: ModuleSpec | None = None
    while frame.f_back is not None:
        starts = starts or frame.f_code.co_name == "run_server_worker"
        if frame.f_globals.get("__name__", "").partition(".")[0] in names:
            caller = frame.f_back.f_globals.get("__spec__")
        frame = frame.f_back
    return starts and caller is not None and caller.name.startswith("vllm.")


def is_of_this_server(pid: int) -> bool:
    """Whether a process is one of this server's, which may have its socket by fork.

    It ends together with this one, so that nobody can say more about it.
    """
    first = multiprocessing.parent_process()  # of several API servers
    ours = {os.getpid(), first.pid if first else None}
    try:
        return not ours.isdisjoint(
            [pid, *(p.pid for p in psutil.Process(pid).parents())]
        )
    except psutil.NoSuchProcess:
        return True


class _Connections:
    """Counts a front-end's connections to its engines; it begins to serve with all."""

    def __init__(self, client: "MPClient") -> None:
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        self._monitor = client.input_socket.get_monitor_socket(events)
        self._count = len(client.core_engines)

    def count(self) -> int:
        while not (read := self._monitor.recv_multipart(zmq.NOBLOCK)).exception():
            event = parse_monitor_message(read.result())["event"]
            self._count += 1 if event == zmq.EVENT_ACCEPTED else -1
        return self._count


def _is_served() -> bool:
    """Whether it is upstream's launcher that runs this loop."""
    tasks = asyncio.all_tasks()
    return any(getattr(t.get_coro(), "__name__", "") == "watchdog_loop" for t in tasks)


def _missing(llm: "AsyncLLM", connections: _Connections | None) -> str | None:
    """Says which process is missing without which the server cannot go on.

    None if it has all of them, or is stopping.
    """
    client = llm.engine_core
    if not client._finalizer.alive:
        return None
    if _parent not in (None, os.getppid()):
        return "the process that started this API server has ended"
    if connections is not None:
        lost = len(client.core_engines) - connections.count()
        if lost > 0:
            return f"{lost} of the engines, all on other hosts, ended or do not answer"
    coordinator = client.resources.coordinator
    if coordinator is not None and not coordinator.proc.is_alive():
        return (
            f"the coordinator (pid {coordinator.proc.pid}) has ended with exit code "
            f"{coordinator.proc.exitcode}, and without it no wave of requests begins"
        )
    return None
