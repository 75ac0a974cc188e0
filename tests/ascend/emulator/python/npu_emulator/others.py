"""Formats of memory, sampling, vocabularies."""

import torch

from .registry import operator

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


@operator("atb::_npu_matmul_add_fp32")
def matmul_add_fp32(x, weight, C):
    """C += xᵀ · weight, in place and in float32."""
    C += x.float().t() @ weight.float()


@operator("npu::npu_top_k_top_p")
def top_k_top_p(logits, p=None, k=None):
    """All but the k largest logits, and the smallest share 1 - p, become -inf."""
    values, order = logits.float().sort(-1)
    size = values.shape[-1]
    if k is not None:
        at = (size - k.long()).clamp(min=0)
        values = values.masked_fill(values < values.gather(-1, at[:, None]), -torch.inf)
    if p is not None:
        unlikely = values.softmax(-1).cumsum(-1) <= 1 - p.float()[:, None]
        unlikely[:, -1] = False  # the best one always stays
        values = values.masked_fill(unlikely, -torch.inf)
    return torch.empty_like(values).scatter_(-1, order, values).to(logits.dtype)


@operator("_C_ascend::get_masked_input_and_mask")
def get_masked_input_and_mask(
    input,
    org_vocab_start_index,
    org_vocab_end_index,
    num_org_vocab_padding,
    added_vocab_start_index,
    added_vocab_end_index,
):
    """Token ids as rows of this rank's vocabulary; True where it has none."""
    original = (input >= org_vocab_start_index) & (input < org_vocab_end_index)
    added = (input >= added_vocab_start_index) & (input < added_vocab_end_index)
    rows = org_vocab_end_index - org_vocab_start_index + num_org_vocab_padding
    shift = added_vocab_start_index - rows
    mine = original | added
    return mine * (input - org_vocab_start_index * original - shift * added), ~mine


@operator("aten::histc")
def histc(self, bins=100, min=0, max=0):
    """Counts in equal parts of a range; of integers, too, unlike the CPU's kernel."""
    counts = torch.histc(self.cpu().double(), bins, min, max)
    return counts.to(self.dtype).to(self.device)
