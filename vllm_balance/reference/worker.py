"""The worker process of a rank: vLLM's CPU worker, ready for eager PyTorch.

Seam: ``ParallelConfig.worker_cls``, which the platform sets.
"""

import os
from typing import Any

# First: it replaces torch's streams and events by ones that a CPU has.
from vllm.v1.worker.cpu_worker import CPUWorker  # isort: skip

import torch
from vllm import envs
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.v1.sample import rejection_sampler
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from vllm_balance.reference import moe  # noqa: F401  registers the expert loop

_DEVICES = "assigned_physical_gpu_ids"


class ReferenceModelRunner(CPUModelRunner):
    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        """Sample; a prompt that is not computed to its end draws no random numbers.

        Else its seed would give another answer than where it is computed in one step.
        """
        mask = self.discard_request_mask.np[: self.input_batch.num_reqs]
        generators = self.input_batch.generators.items()
        states = [(each, each.get_state()) for i, each in generators if mask[i]]
        sampled = super()._sample(*args, **kwargs)
        for generator, state in states:
            generator.set_state(state)
        return sampled

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        """Hide the generators, whose offsets upstream would set back.

        Those of devices have one, also of NPUs (read in torch_npu 2.10.0.post4); those
        of a CPU have not.
        """
        batch = self.input_batch
        generators, batch.generators = batch.generators, {}
        try:
            return super()._bookkeeping_sync(*args, **kwargs)
        finally:
            batch.generators = generators


class ReferenceWorker(CPUWorker):
    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        # From 0.33 on the CPU worker takes the devices that its rank was assigned for
        # memory nodes of the machine; here they only count ranks.
        if getattr(vllm_config.parallel_config, _DEVICES, None) is not None:
            setattr(vllm_config.parallel_config, _DEVICES, None)
        super().__init__(vllm_config, *args, **kwargs)

    def init_device(self) -> None:
        # A forked process has imported torch before OMP_NUM_THREADS was set; with
        # more threads than cores among the ranks a step takes 20 times as long.
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self._bind()
        # The sampler's helpers are compiled at their first call, by a C++ compiler.
        torch._dynamo.config.disable = True
        super().init_device()
        # The CPU worker names the class itself.
        self.model_runner.__class__ = ReferenceModelRunner
        # The runner's own lacks wait_stream (async scheduling); without one it takes
        # the replacement above.
        self.model_runner.async_output_copy_stream = None
        # Later releases start kernels through launchers; the CPU runner of 0.30 gives
        # most of these the CPU's kernel, and forgets this one.
        launcher = getattr(rejection_sampler, "_rejection_greedy_sample", None)
        if launcher is not None:
            launcher.kernel = rejection_sampler.rejection_greedy_sample_kernel

    def _bind(self) -> None:
        """Stay on the cores that VLLM_CPU_OMP_THREADS_BIND has for this rank.

        Upstream's executor of several processes does that, the other one does not.
        Ranks that go where they like meet on one core, while another is idle.
        """
        value = envs.VLLM_CPU_OMP_THREADS_BIND
        if value in ("auto", "nobind"):
            return
        # Not every release has it.
        from vllm.utils.cpu_resource_utils import parse_id_list

        parallel = self.parallel_config
        first = (parallel.data_parallel_rank_local or 0) * parallel.local_world_size
        rank = first + self.local_rank
        try:
            cores = parse_id_list(value.split("|")[rank])
            os.sched_setaffinity(0, cores)
        except (LookupError, ValueError, OSError) as error:
            raise ValueError(
                f"VLLM_CPU_OMP_THREADS_BIND={value}: expected cores of this machine "
                f"for each rank, as 0-3|4-7 for two; for rank {rank}: {error}"
            ) from None

    def determine_available_memory(self) -> int:
        """Warm up, where that is possible; the KV cache has a fixed size, in bytes."""
        if self.vllm_config.speculative_config is None:
            available: int = super().determine_available_memory()
            # Later releases do not warm up eager PyTorch; but a later stage of a
            # pipeline gets its input buffers there.
            runner = self.model_runner
            if runner.intermediate_tensors is None and not get_pp_group().is_first_rank:
                runner.profile_run()
            return available
        # The warm-up would sample at random, which upstream's rejection sampler
        # cannot do on a CPU.
        size: int = self.cache_config.kv_cache_memory_bytes
        return size
