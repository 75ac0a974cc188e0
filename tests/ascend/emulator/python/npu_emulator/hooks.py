"""What sitecustomize calls after an import."""

import functools
import os
import typing

from . import (
    attention,
    experts,
    groups,
    latent,
    layers,
    others,
    quantised,
    registry,
    sparse,
)

MODULES = (attention, experts, groups, latent, layers, others, quantised, sparse)
"""They register what they have."""


def operators_of_torch_npu(module):
    """torch_npu has been imported."""
    import emulated_aten

    emulated_aten.install()
    registry.override()
    registry.replace(["npu", "atb"])


def operators_of_the_plugin(module):
    """The plugin's kernel library has been loaded."""
    registry.replace(["_C_ascend"])


def device_type(module):
    """EMULATOR_DEVICE_TYPE: code of another device, in the wheel for A2."""
    if wanted := os.environ.get("EMULATOR_DEVICE_TYPE"):
        module.__device_type__ = wanted


def float32_of_quantised(module):
    """Let a quantised model have activations in float32, which compare exactly."""
    config = module.AscendModelSlimConfig
    known = [*config.get_supported_act_dtypes(), module.torch.float32]
    config.get_supported_act_dtypes = classmethod(lambda cls: known)


def float32_of_caches(module):
    """Let the plugin name float32 as a cache's type, as with an indexer it does."""
    known = typing.get_args(module.CacheDType)
    module.CacheDType = typing.Literal[(*known, "float32")]


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


def triton_masks(module):
    """Let a mask of one element that is False forbid.

    triton 3.2 asks `if not mask` for whether there is one.
    """
    semantic = module.language.semantic

    class Mask(module.language.tensor):
        def __bool__(self):
            return True

    def with_mask(function):
        def run(pointer, value, mask, *rest):
            if mask is not None:
                if pointer.type.is_block():
                    shape = pointer.type.get_block_shapes()
                    mask = semantic.broadcast_impl_shape(mask, shape, rest[-1])
                mask = Mask(mask.handle, mask.type)
            return function(pointer, value, mask, *rest)

        return run

    for name in ("_store_legacy", "atom_red_typechecking_impl"):
        setattr(semantic, name, with_mask(getattr(semantic, name)))


def triton_launches(module):
    """Make a kernel one launch; its interpreter copies to the host and back."""
    from .launches import launched

    call = module.GridExecutor.__call__

    def run(self, *arguments, **rest):
        name = f"triton {self.fn.__name__}"
        # Without options of a compiler, which a tuner adds.
        known = {key: rest[key] for key in rest if key in (*self.arg_names, "warmup")}
        return launched(name, functools.partial(call, self))(*arguments, **known)

    module.GridExecutor.__call__ = run


def triton_slices(module):
    """Give the interpreter what only triton-ascend's compiler has."""
    from . import slices

    for name in ("get_element", "extract_slice", "insert_slice"):
        setattr(module, name, getattr(slices, name))
