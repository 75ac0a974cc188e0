"""What sitecustomize calls after an import."""

import ctypes
import functools
import json
import os

from . import attention, experts, groups, layers, others, registry

MODULES = (attention, experts, groups, layers, others)
"""They register what they have."""

COUNTS = "EMULATOR_COUNTS"


def _counter():
    """Appends a line to this process's file of counts; None if nobody counts."""
    if COUNTS not in os.environ:
        return None
    write = ctypes.CDLL("libemulated_cann.so").emulator_count
    return lambda line: write(line.encode())


def operators_of_torch_npu(module):
    """torch_npu has been imported."""
    import emulated_aten

    emulated_aten.install()
    registry.override()
    registry.replace(["npu", "atb"], _counter())


def operators_of_the_plugin(module):
    """The plugin's kernel library has been loaded."""
    registry.replace(["_C_ascend"], _counter())


def device_type(module):
    """EMULATOR_DEVICE_TYPE: code of another device, in the wheel for A2."""
    if wanted := os.environ.get("EMULATOR_DEVICE_TYPE"):
        module.__device_type__ = wanted


def _scheduled(scheduler_output, *arguments, **rest):
    return scheduler_output.total_num_scheduled_tokens


def count_steps(module):
    """EMULATOR_COUNTS: a line before each step of the model runner."""
    count = _counter()
    if count is None:
        return

    def counted(method, tokens_of):
        @functools.wraps(method)
        def run(self, *arguments, **rest):
            line = {"kind": "step", "name": method.__name__, "rank": self.dp_rank}
            count(json.dumps({**line, "tokens": tokens_of(*arguments, **rest)}))
            return method(self, *arguments, **rest)

        return run

    runner = module.NPUModelRunner
    runner.execute_model = counted(runner.execute_model, _scheduled)
    runner._dummy_run = counted(
        runner._dummy_run, lambda num_tokens, *a, **k: num_tokens
    )
    synchronize = runner._sync_metadata_across_dp

    @functools.wraps(synchronize)
    def synchronize_and_count(self, num_tokens, *arguments, **rest):
        result = synchronize(self, num_tokens, *arguments, **rest)
        if result[1] is not None:
            loads = {"kind": "loads", "tokens": num_tokens, "ranks": result[1].tolist()}
            count(json.dumps(loads))
        return result

    runner._sync_metadata_across_dp = synchronize_and_count


def triton_driver(module):
    """triton-ascend compiles a helper against CANN to ask the device for this."""

    class Device:
        def get_device_properties(self, device=None):
            return {
                "num_aicore": 24,
                "num_vectorcore": 48,
                "max_shared_mem": 192 << 10,
                "mem_bus_width": 0,
                "mem_clock_rate": 0,
                "sm_clock_rate": 0,
            }

        def get_arch(self):
            return os.environ.get("EMULATOR_SOC", "Ascend910B3")

        def get_aicore_num(self):
            return 24

    # The module of the driver is in no table of modules.
    module.backends["ascend"].driver.__init__.__globals__["NPUUtils"] = Device
