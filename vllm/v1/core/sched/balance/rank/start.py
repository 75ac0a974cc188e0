# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Makes the gate of a scheduler as its server is configured, and starts it."""

from functools import partial
from typing import TYPE_CHECKING

from vllm import envs
from vllm.fixes.orphans import end_with_parent
from vllm.fixes.server_end import timeout_of
from vllm.logger import init_logger
from vllm.v1.core.sched.balance.options import check_balance_scheduler, only_decodes
from vllm.v1.core.sched.balance.rank.gate import BalanceGate
from vllm.v1.core.sched.balance.rank.group import (
    RowExchange,
    SelfExchange,
    check_identity,
    identity_of,
    sends_early,
)
from vllm.v1.core.sched.balance.rank.metrics import BalanceStats
from vllm.v1.core.sched.balance.rank.reads import limits_of
from vllm.v1.core.sched.balance.rank.timing import Timing

from vllm_balance.core.policies import SHORT_FIRST, LatencyLimits, create_policy

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

logger = init_logger(__name__)


def create_balance_gate(
    scheduler: "Scheduler", vllm_config: "VllmConfig"
) -> BalanceGate | None:
    """The scheduler's gate, or None if balance scheduling is off.

    On a decode instance all prompts come with their KV cache, so nothing would be held:
    its gate only reports.
    """
    parallel_config = vllm_config.parallel_config
    name = parallel_config.data_parallel_balance
    if name == "off":
        return None
    rank, size = parallel_config.data_parallel_rank, parallel_config.data_parallel_size
    logger.info(
        "Data parallel balance scheduling is on: policy %s, %s.",
        name,
        f"{size} ranks" if size > 1 else "this rank by itself",
    )
    exchange: RowExchange = SelfExchange(partial(limits_of, scheduler))
    if size > 1:  # upstream says 1 to each rank of a dense model
        exchange = RowExchange(
            timeout_of(parallel_config), identity_of(vllm_config), rank, size
        )
    if only_decodes(vllm_config):
        name = "off"
    limits = LatencyLimits(
        parallel_config.data_parallel_balance_ttft_ms / 1e3,
        parallel_config.data_parallel_balance_tpot_ms / 1e3,
    )
    in_flight = vllm_config.max_concurrent_batches
    is_fcfs = vllm_config.scheduler_config.policy == "fcfs"
    return BalanceGate(
        scheduler,
        name,
        Timing(exchange, sends_early(vllm_config)),
        BalanceStats(name, rank),
        partial(create_policy, in_flight=in_flight, limits=limits),
        short_first=SHORT_FIRST if is_fcfs else (),
        ttft=limits.ttft,
    )


def start_balance_gate(core: "EngineCore") -> None:
    """Starts what runs beside the engine core's loop, once it has its scheduler.

    Refuses what would ignore the gate, and ranks that would decide differently.
    """
    check_balance_scheduler(core.scheduler, core.vllm_config)
    group = getattr(core, "dp_group", None)
    if envs.VLLM_ELASTIC_EP_SCALE_UP_LAUNCH:
        group = None  # the other ranks come to it while they serve
    if hasattr(core, "input_queue"):  # in a process of its own
        end_with_parent()
    if (gate := getattr(core.scheduler, "balance_gate", None)) is not None:
        gate.start(core, group)
    elif group is not None:
        check_identity(group, identity_of(core.vllm_config))
