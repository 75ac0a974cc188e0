"""Puts the emulated operators in place as soon as what declares them is imported."""

import importlib.abc
import importlib.machinery
import sys

CUDA_GRAPHS = "torch.cuda.graphs"
"""A torch without CUDA says that no stream of CUDA is captured; this one would ask."""

AFTER = {
    CUDA_GRAPHS: "",
    "torch_npu": "operators_of_torch_npu",
    "vllm_ascend.vllm_ascend_C": "operators_of_the_plugin",
    "vllm_ascend._build_info": "device_type",
    "vllm_ascend.quantization.modelslim_config": "float32_of_quantised",
    "vllm.v1.attention.selector": "float32_of_caches",
    "triton.backends": "triton_driver",
    "triton": "triton_masks",
    "triton.runtime.interpreter": "triton_launches",
    "vllm_ascend.ops.triton.triton_utils": "triton_slices",
}


class _After(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in AFTER:
            return None
        function = AFTER.pop(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            if name == CUDA_GRAPHS:  # torch itself is not there yet
                module._cuda_isCurrentStreamCapturing = lambda: False
                return
            from npu_emulator import hooks

            getattr(hooks, function)(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _After())
