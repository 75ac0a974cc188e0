# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Refuses what balance scheduling cannot do, in one sentence each.

Imports nothing else of vllm at run time: `vllm.config` imports this module.
"""

import inspect
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig
    from vllm.v1.core.sched.interface import SchedulerInterface

BALANCE_OPTIONS = (
    "data_parallel_balance",
    "data_parallel_balance_ttft",
    "data_parallel_dispatch",
)
"""Our fields of `ParallelConfig`, which are options of the command line, too."""

_FLAG = "--data-parallel-balance"


def check_balance_config(parallel_config: "ParallelConfig") -> None:
    """Refuses a deployment that has no ranks to balance.

    Raises:
        ValueError: balance is on for one rank, for a model without MoE layers, or
            with upstream's front-end in Rust; or a TTFT budget is given to a policy
            that has none; or a dispatch where no front-end chooses among ranks.
    """
    policy = parallel_config.data_parallel_balance
    dispatch = parallel_config.data_parallel_dispatch
    if dispatch is not None and (
        parallel_config.data_parallel_size == 1
        or parallel_config.data_parallel_external_lb
    ):
        raise ValueError(
            f"--data-parallel-dispatch {dispatch}: there is one rank for each API, so "
            "that whoever calls it chooses the rank. Set --data-parallel-size without "
            "external load balancing, or remove the flag."
        )
    ttft = parallel_config.data_parallel_balance_ttft
    if ttft is not None and not policy.startswith("adaptive"):
        raise ValueError(
            f"{_FLAG}-ttft is a knob of {_FLAG} adaptive, but the policy is {policy}. "
            "Choose that policy, or remove the knob."
        )
    if policy == "off":
        return
    if parallel_config.is_moe_model is False:
        raise ValueError(
            f"{_FLAG} {policy}: the data parallel ranks of a model without MoE "
            "layers do not step in lock step, so there is nothing to balance. "
            f"Remove the flag or use {_FLAG} off."
        )
    if parallel_config.data_parallel_size == 1:
        raise ValueError(
            f"{_FLAG} {policy} needs at least two data parallel ranks, but "
            "data_parallel_size is 1. Set --data-parallel-size, or remove the flag."
        )
    # Not vllm.envs, which would resolve the path of the program, too.
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        raise ValueError(
            f"{_FLAG} {policy} does not work with VLLM_USE_RUST_FRONTEND: that "
            "front-end would neither compare the ranks' policies at the handshake nor "
            "report the metrics. Unset the variable, or remove the flag."
        )


def check_balance_scheduler(
    scheduler: "SchedulerInterface", vllm_config: "VllmConfig"
) -> None:
    """Refuses a scheduler or an engine that would ignore the gate.

    Raises:
        ValueError: balance is on, but the scheduler has no gate, or replaces
            `schedule()` instead of calling `super().schedule()`, or the engine
            does not run the data parallel loop.
    """
    # Not at the top, because of vllm.config.
    from vllm import envs
    from vllm.logger import init_logger

    policy = vllm_config.parallel_config.data_parallel_balance
    if policy == "off":
        return
    if vllm_config.model_config is not None and not vllm_config.model_config.is_moe:
        raise ValueError(
            f"{_FLAG} {policy}: {vllm_config.model_config.model} has no MoE layers, so "
            "its ranks do not step in lock step and there is nothing to balance. "
            f"Remove the flag or use {_FLAG} off."
        )
    if vllm_config.parallel_config.data_parallel_size == 1:
        raise ValueError(
            f"{_FLAG} {policy} needs at least two data parallel ranks, but this "
            "engine has one. Set --data-parallel-size, or remove the flag."
        )
    if not envs.VLLM_ENABLE_V1_MULTIPROCESSING:
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
        init_logger(__name__).warning(
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
