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
    on, so that the plugin's own checks of the combination hold for the flag too.

    Raises:
        ValueError: the flag is given on a host that only prefills or only decodes,
            which the plugin refuses by the name of its own switch.
    """
    parallel_config = vllm_config.parallel_config
    if not isinstance(parallel_config.data_parallel_balance, str):
        return  # a mock of the plugin's own tests, which has every attribute
    nested = (vllm_config.additional_config or {}).get("scheduler_config") or {}
    switched_on = ascend_config.enable_balance_scheduling or nested.get(
        "enable_balance_scheduling", False
    )
    if switched_on and parallel_config.data_parallel_balance == "off":
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
    policy = parallel_config.data_parallel_balance
    is_on = policy != "off"
    ascend_config.enable_balance_scheduling = is_on
    transfer = vllm_config.kv_transfer_config
    role = transfer.kv_role if transfer is not None else "kv_both"
    if is_on and not switched_on and role != "kv_both":
        raise ValueError(
            f"--data-parallel-balance {policy}: vllm-ascend runs no balance scheduling "
            "on an instance that only prefills or only decodes, and "
            f"--kv-transfer-config has kv_role {role}. Remove the flag, or use kv_both."
        )
