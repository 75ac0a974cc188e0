"""Formats of memory, sampling, vocabularies."""

import torch

from .registry import operator, require

ND = 2
"""The number of the plain format; the emulated device has no other."""


@operator("npu::npu_format_cast")
def format_cast(input, acl_format, **rest):
    """The same tensor: the device has one format."""
    return input


@operator("npu::npu_format_cast.Tensor")
def format_cast_like(input, dst, **rest):
    """The same tensor."""
    return input


@operator("npu::npu_format_cast_")
def format_cast_in_place(input, *rest):
    """The same tensor."""
    return input


@operator("npu::get_npu_format")
def get_format(input):
    """The plain format."""
    return ND


@operator("npu::npu_prefetch")
def prefetch(*arguments, **rest):
    """A hint for a cache that is not there."""


@operator("npu::npu_scatter_nd_update_", returns=("input",))
def scatter_nd_update(input, indices, updates):
    """Write rows to where the indices say.

    CANN says nothing of indices below 0, which the plugin has in padding: they write
    nothing here.
    """
    require(indices.shape[1:] == (1,), "npu_scatter_nd_update_", indices.shape)
    there = indices[:, 0] >= 0
    input[indices[there, 0].long()] = updates[there]
    return input


@operator("atb::_npu_matmul_add_fp32")
def matmul_add_fp32(x, weight, C):
    """C += xᵀ · weight, in place and in float32."""
    C += x.float().t() @ weight.float()


@operator("aten::histc")
def histc(self, bins=100, min=0, max=0):
    """Counts in equal parts of a range; of integers, too, unlike the CPU's kernel."""
    counts = torch.histc(self.cpu().double(), bins, min, max)
    return counts.to(self.dtype).to(self.device)
