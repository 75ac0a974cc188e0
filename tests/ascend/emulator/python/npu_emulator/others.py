"""Formats of memory, quantisation, sampling, vocabularies."""

import torch

from .registry import operator, require

ND = 2
"""The number of the plain format; the emulated device has no other."""
INT8, QINT8 = 1, 12
"""Numbers of data types, as operators of torch_npu get them."""
INT8_MOST = 127


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


@operator("npu::npu_dynamic_quant")
def dynamic_quant(
    input,
    *,
    smooth_scales=None,
    group_index=None,
    dst_type=None,
    quant_mode="pertoken",
    dst_type_max=0.0,
):
    """int8 by the largest value of each token; also the scales, float32."""
    name = "npu_dynamic_quant"
    require(dst_type in (None, torch.int8, INT8), name, f"dst_type={dst_type}")
    require(group_index is None and quant_mode == "pertoken", name, quant_mode)
    x = (
        input.float()
        if smooth_scales is None
        else input.float() * smooth_scales.float()
    )
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / INT8_MOST
    quantised = (x / scale).round().clamp(-INT8_MOST - 1, INT8_MOST)
    return quantised.to(torch.int8), scale[..., 0]


@operator("npu::npu_quantize")
def quantize(input, scales, zero_points, dtype, axis=1, div_mode=True):
    """round(x / scale + zero point), or times the scale, as int8."""
    require(dtype in (torch.int8, QINT8), "npu_quantize", f"dtype={dtype}")
    x = input.float() / scales.float() if div_mode else input.float() * scales.float()
    if zero_points is not None:
        x = x + zero_points.float()
    return x.round().clamp(-INT8_MOST - 1, INT8_MOST).to(torch.int8)


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
