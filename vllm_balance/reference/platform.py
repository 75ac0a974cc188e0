"""The platform class: which seams of vLLM's CPU platform are filled differently.

vLLM's own ``CpuPlatform`` is the base: attention backend, model runner and the rest
are its own. It assumes compiled operators and one process per NUMA node; what follows
from that is undone here.
"""

import os
import sys
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.platforms.cpu import CpuPlatform

from vllm_balance.reference import emulated_config, limits

logger = init_logger(__name__)

KV_CACHE_BYTES = 256 * 2**20
"""Default size of a rank's KV cache; upstream's is a fraction of the machine."""

ENVIRONMENT = {
    # One thread a rank: ranks share the cores, and small models gain nothing.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # There is no operator of MLA; upstream has the same layers with plain attention.
    "VLLM_MLA_DISABLE": "1",
}

if sys.platform == "linux":
    # Starts a rank in a third of the time of "spawn", which `vllm serve` would choose.
    ENVIRONMENT["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"


class ReferencePlatform(CpuPlatform):
    # Upstream's names a NUMA node for each rank, which would not exist for rank 1.
    device_control_env_var = "VLLM_BALANCE_REFERENCE_DEVICES"
    # Ray hands out ids only for accelerators that it knows by name, and a rank asks
    # for one. Start Ray with --resources '{"NPU": <ranks>}'.
    ray_device_key = "NPU"

    _speculative = False

    def __init__(self) -> None:
        # vLLM makes the one instance when it chooses this platform: before
        # `vllm serve` settles how to start processes, and in every process.
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # torch and Triton must not find a card that no tensor lives on. Not "": vLLM
        # reads an empty value as "somebody else will assign the cards".
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """Float32 first: ``--dtype auto`` then keeps float32 weights as they are."""
        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def pre_register_and_update(cls, parser: Any = None) -> None:
        """Give the command line defaults that fit a laptop.

        Upstream starts one API server and, besides, one worker process for each rank;
        each takes 0.6 GB.
        """
        if parser is None:
            return
        parser.set_defaults(distributed_executor_backend="uni")
        if "--headless" not in sys.argv:  # refuses any --api-server-count
            parser.set_defaults(api_server_count=1)

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: Any) -> None:
        """Run eagerly, with a small KV cache, unless told otherwise."""
        # Not at the top: vllm.config asks for the platform while it is imported.
        from vllm.config import CompilationMode

        limits.check(vllm_config)
        vllm_config.compilation_config.mode = CompilationMode.NONE
        cache = vllm_config.cache_config
        if cache.kv_cache_memory_bytes is None:
            cache.kv_cache_memory_bytes = KV_CACHE_BYTES
        parallel = vllm_config.parallel_config
        if parallel.distributed_executor_backend == "uni" and parallel.world_size > 1:
            parallel.distributed_executor_backend = "mp"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Apply the CPU platform's rules, less those that serve compiled operators."""
        parallel = vllm_config.parallel_config
        scheduler = vllm_config.scheduler_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "vllm_balance.reference.worker.ReferenceWorker"
            if emulated_config.OPTION in vllm_config.additional_config:
                emulated_config.check(vllm_config)
                parallel.worker_cls = emulated_config.WORKER
        # The base class forces these three; what was asked for works here.
        executor = parallel.distributed_executor_backend
        async_scheduling = scheduler.async_scheduling
        start_method = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "fork")
        super().check_and_update_config(vllm_config)
        parallel.distributed_executor_backend = executor
        scheduler.async_scheduling = async_scheduling
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = start_method
        # Every layer that has a compiled form takes its PyTorch form.
        vllm_config.compilation_config.custom_ops = ["none"]
        cls._speculative = vllm_config.speculative_config is not None
        logger.info_once(
            "Reference platform of vllm-balance: PyTorch operators on the CPU, for "
            "correctness; speed means nothing here."
        )

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        limits.check_sampling(cls._speculative, getattr(params, "temperature", 0.0))

    @classmethod
    def import_kernels(cls) -> None:
        from vllm_balance.reference import operators  # noqa: F401

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm_balance.reference.communicator.ReferenceCommunicator"
