# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Ends an API server that has lost its engines: clients get errors, nothing is left.

Upstream kills its engines at once when it is told to stop, and then takes down the
task that would have told the waiting requests. If no rank has answered them in between,
uvicorn waits without limit for streams that nobody feeds any more. It also notices
neither that the coordinator has ended, nor, in an API server that is not the first
process, that the first one has.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.logger import init_logger
from vllm.v1.core.sched.balance.parents import parent_is_gone

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

logger = init_logger(__name__)

_PERIOD_S = 0.25
GRACE_S = 2
"""How long a client that does not read its answer may hold up the end."""

_watches: set[asyncio.Task[None]] = set()


def end_with_engines(server: Any, engine_client: "AsyncLLM") -> None:
    """With balance on, ends the server when its engines have ended or must end.

    Called in the event loop of the server.

    Args:
        server: the `uvicorn.Server`.
        engine_client: what the server asks its engines through.
    """
    config = getattr(engine_client, "vllm_config", None)
    if config is None or config.parallel_config.data_parallel_balance == "off":
        return
    task = asyncio.create_task(_watch(server, engine_client))
    _watches.add(task)  # the loop keeps only a weak reference
    task.add_done_callback(_watches.discard)


async def _watch(server: Any, engine_client: "AsyncLLM") -> None:
    missing = None
    while not engine_client.errored:
        # Twice in a row: where all processes are told to stop, the coordinator is the
        # first to go.
        before, missing = missing, _missing(engine_client)
        if before is not None and missing is not None:
            logger.error("Data parallel balance: %s. Ending the server.", missing)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, partial(engine_client.shutdown, timeout=0))
            break
        await asyncio.sleep(_PERIOD_S)
    engine_client.output_processor.propagate_error(engine_client.dead_error)
    server.config.timeout_graceful_shutdown = GRACE_S
    if not envs.VLLM_KEEP_ALIVE_ON_ENGINE_DEATH:
        server.should_exit = True


def _missing(engine_client: "AsyncLLM") -> str | None:
    """In words, the process without which the server cannot go on; None if it has all
    of them, or is stopping."""
    client = engine_client.engine_core
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
