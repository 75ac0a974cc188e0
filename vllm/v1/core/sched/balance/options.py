# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Refuses what balance scheduling cannot do, in one sentence each.

Also serves the switches of vllm-ascend's balance patch. `vllm.config` imports this
module.
"""

import inspect
import os
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

from vllm_balance.core.policies import ALONE
from vllm_balance.policy import KEY, key_of

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig
    from vllm.v1.core.sched.interface import SchedulerInterface

logger = init_logger(__name__)

BALANCE_OPTIONS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        "data_parallel_balance",
        "data_parallel_balance_ttft_ms",
        "data_parallel_balance_tpot_ms",
        "data_parallel_dispatch",
    )
}
"""Our fields of `ParallelConfig`, and the options that set them."""

_FLAG = "--data-parallel-balance"


def only_decodes(vllm_config: "VllmConfig") -> bool:
    """Whether all prompts come with their KV cache, as on a decode instance."""
    return getattr(vllm_config.kv_transfer_config, "kv_role", None) == "kv_consumer"


def check_balance_config(parallel_config: "ParallelConfig") -> None:
    """Refuses a deployment for which an option, or the operators' key, is in vain."""
    key_of(KEY)  # before a model is loaded
    policy = parallel_config.data_parallel_balance
    dispatch = parallel_config.data_parallel_dispatch
    if dispatch is not None and (
        parallel_config.data_parallel_size == 1
        or parallel_config.data_parallel_external_lb
    ):
        raise ValueError(
            f"--data-parallel-dispatch {dispatch}: there is one rank for each API, so "
            "its clients choose the rank. Set --data-parallel-size without external "
            "load balancing, or remove the flag."
        )
    if policy == "off":
        return
    check_ranks(policy, parallel_config, parallel_config.is_moe_model)
    # Not vllm.envs, which would resolve the path of the program, too.
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        raise ValueError(
            f"{_FLAG} {policy} does not work with VLLM_USE_RUST_FRONTEND: that "
            "front-end would send requests as with balance off, and report no metrics. "
            "Unset the variable, or remove the flag."
        )


def check_ranks(
    policy: str, parallel_config: "ParallelConfig", is_moe: bool | None
) -> None:
    """Refuses a policy that needs ranks which wait for each other, without any."""
    if policy == "off" or policy in ALONE:
        return
    if is_moe is False:
        raise ValueError(
            f"{_FLAG} {policy}: the data parallel ranks of a model without MoE "
            "layers do not step in lock step, so there is nothing to balance. "
            f"Use {_FLAG} adaptive, which gathers the prompts of each rank by itself, "
            "or remove the flag."
        )
    if parallel_config.data_parallel_size == 1:
        raise ValueError(
            f"{_FLAG} {policy} needs at least two data parallel ranks, but "
            "data_parallel_size is 1. Set --data-parallel-size; or use adaptive, which "
            "gathers the prompts of one rank; or remove the flag."
        )


def check_balance_scheduler(
    scheduler: "SchedulerInterface", vllm_config: "VllmConfig"
) -> None:
    """Refuses a scheduler or an engine that would ignore the gate."""
    from vllm import envs  # not at the top, because of vllm.config

    policy = vllm_config.parallel_config.data_parallel_balance
    if policy == "off":
        return
    model = vllm_config.model_config
    is_moe = None if model is None else model.is_moe
    check_ranks(policy, vllm_config.parallel_config, is_moe)
    has_group = vllm_config.parallel_config.data_parallel_size > 1
    if has_group and not envs.VLLM_ENABLE_V1_MULTIPROCESSING:
        raise ValueError(
            f"{_FLAG} {policy}: the engine runs in its caller's process "
            "(VLLM_ENABLE_V1_MULTIPROCESSING=0, which external_launcher implies), "
            "without the loop in which the ranks agree, so the flag would do nothing. "
            "Remove the variable or the launcher, or the flag."
        )
    owner = _class_that_ignores_the_gate(type(scheduler))
    if getattr(scheduler, "balance_gate", None) is None or owner is not None:
        name = (owner or type(scheduler)).__qualname__
        raise ValueError(
            f"{_FLAG} {policy}: the scheduler {name} has a schedule() of its own that "
            "does not ask the balance gate, so the flag would do nothing. Use a "
            "scheduler that calls super().schedule(), or remove the flag."
        )
    # vllm-ascend 0.23 on instances that only prefill: its copy without preemption.
    if getattr(scheduler, "_disable_preemption", False):
        logger.warning(
            "%s %s: on this prefill instance the scheduler of vllm-ascend does not ask "
            "the balance gate, so nothing is held and each exchange is in vain. The "
            "dispatch works without it: use %s off with --data-parallel-dispatch "
            "prefixes.",
            _FLAG,
            policy,
            _FLAG,
        )


def _class_that_ignores_the_gate(cls: type) -> type | None:
    """The class that keeps `schedule` from the gate; None if the gate is reached.

    The first, in method resolution order, whose `schedule` neither asks the gate nor
    calls the next `schedule`.
    """
    for owner in cls.__mro__:
        schedule = owner.__dict__.get("schedule")
        if schedule is None:
            continue
        code = getattr(inspect.unwrap(schedule), "__code__", None)
        names = code.co_names if code is not None else ()
        if "balance_gate" in names:
            return None
        if not ("super" in names and "schedule" in names):
            return owner
    return None


def adopt_legacy_switches(vllm_config: "VllmConfig", ascend_config: Any) -> None:
    """Makes a legacy switch of the plugin mean `--data-parallel-balance cap`.

    The switches are the environment variable VLLM_ASCEND_BALANCE_SCHEDULING and
    `enable_balance_scheduling` in `additional_config`, at its top level (the plugin
    has read both into `ascend_config`) or below `scheduler_config`. A policy that
    was chosen with the flag wins. Where balance cannot work, a switch that may be
    set for a whole cluster is ignored with a warning; the flag would be refused.

    Afterwards `ascend_config.enable_balance_scheduling` says whether any policy is
    on, so that the plugin's own checks of the combination hold for the flag too: all
    but the one that refuses instances that only prefill or only decode, which is about
    the plugin's copy of the scheduler.
    """
    parallel_config = vllm_config.parallel_config
    if not isinstance(parallel_config.data_parallel_balance, str):
        return  # a mock of the plugin's own tests, which has every attribute
    nested = (vllm_config.additional_config or {}).get("scheduler_config") or {}
    switched_on = ascend_config.enable_balance_scheduling or nested.get(
        "enable_balance_scheduling", False
    )
    flagged = parallel_config.data_parallel_balance != "off"
    if switched_on and not flagged:
        parallel_config.data_parallel_balance = "cap"
        try:
            check_balance_config(parallel_config)
        except ValueError as error:
            parallel_config.data_parallel_balance = "off"
            logger.warning(
                "enable_balance_scheduling of vllm-ascend is ignored: %s", error
            )
        else:
            logger.warning(
                "enable_balance_scheduling of vllm-ascend is deprecated: it now means "
                "--data-parallel-balance cap. Use the flag, which has more policies."
            )
    role = getattr(vllm_config.kv_transfer_config, "kv_role", "kv_both")
    policy = parallel_config.data_parallel_balance
    ascend_config.enable_balance_scheduling = policy != "off" and not (
        flagged and role != "kv_both"
    )
    if flagged and role == "kv_consumer" and ascend_config.recompute_scheduler_enable:
        raise ValueError(
            f"--data-parallel-balance {policy}: the ranks of a decode instance hang "
            "with recompute_scheduler_enable of vllm-ascend (#8975 there), whose "
            "scheduler does not ask the balance gate. Remove one of the two."
        )
