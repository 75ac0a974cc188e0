# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How long a process waits for others before it takes them for lost."""

from typing import TYPE_CHECKING

from vllm import envs

if TYPE_CHECKING:
    from vllm.config import ParallelConfig


def timeout_of(parallel_config: "ParallelConfig") -> float:
    """Seconds that a rank, or a front-end without ranks, waits for the others.

    What the operator allows the collective calls on the CPU, or else what upstream
    allows a step of the model.
    """
    seconds = parallel_config.cpu_distributed_timeout_seconds
    return float(seconds or envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)
