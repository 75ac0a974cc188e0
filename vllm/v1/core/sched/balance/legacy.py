# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The switches of vllm-ascend's balance patch, served by `--data-parallel-balance`."""

from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.core.sched.balance.validation import check_balance_config

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)


def adopt_legacy_switches(vllm_config: "VllmConfig", ascend_config: Any) -> None:
    """Turns a legacy switch of the plugin into `--data-parallel-balance cap`.

    The switches are the environment variable VLLM_ASCEND_BALANCE_SCHEDULING and
    `enable_balance_scheduling` in `additional_config`, at its top level (the plugin
    has read both into `ascend_config`) or below `scheduler_config`. A policy that
    was chosen with the flag wins. Where balance cannot work, a switch that may be
    set for a whole cluster is ignored with a warning; the flag would be refused.

    Afterwards `ascend_config.enable_balance_scheduling` says whether any policy is
    on, so that the plugin's own checks of the combination hold for the flag too: all
    but the one that refuses instances that only prefill or only decode, which is about
    the plugin's copy of the scheduler.

    Raises:
        ValueError: the flag is given on a decode instance with the plugin's recompute
            scheduler, whose ranks hang (vllm-ascend #8975).
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
