"""Products of integers: tokens of eight bits with weights of eight or of four."""

import torch

from .layers import swiglu
from .registry import operator, require, require_defaults

LARGEST = 127
TYPES = {
    None: torch.int8,
    1: torch.int8,
    3: torch.int32,
    5: torch.float16,
    6: torch.float32,
    15: torch.bfloat16,
}
"""By the numbers that torch has for them."""

UNLIMITED = (0.0, 1000000.0)
"""What says that a SwiGLU has no `swiglu_limit`."""


def quantise(x):
    """Integers for each row, and its scale: a 127th of its largest value."""
    x = x.float()
    scale = x.abs().amax(-1) / LARGEST
    one = torch.ones_like(scale)
    return (x / torch.where(scale > 0, scale, one)[..., None]).round().char(), scale


def product(x, weight):
    """The exact one, of integers."""
    return x.double() @ weight.double()


def scaled(made, scale, token_scale):
    """A product of integers as a number, by the scales of its column and its row."""
    return made.float() * scale.float() * token_scale.float()[..., None]


def unpacked(weight):
    """The integers of four bits of which an int32 holds eight, the lowest first."""
    shifts = torch.arange(0, 32, 4, device=weight.device)
    return ((weight[..., None] >> shifts & 15 ^ 8) - 8).flatten(-2)


def numbers(scales):
    """Those whose bits are in integers of 64 bits, which other scales are not."""
    return scales.int().view(torch.float32) if scales.dtype == torch.int64 else scales


def scaled_product(x, weight, scale, token_scale, bias=None):
    """Of one expert, times the scales.

    A weight of four bits meets tokens that are less by eight, and the bias is what they
    miss; its scales are one for each column, or for each column of a group of rows.
    """
    scale = numbers(scale)
    if weight.dtype != torch.int32:
        return scaled(product(x, weight), scale, token_scale)
    weight = unpacked(weight).double()
    scale = scale.view(-1, weight.shape[-1]).double()
    parts = (len(scale), -1)
    x, weight = (x.double() - 8).unflatten(1, parts), weight.unflatten(0, parts)
    made = torch.einsum("tgk,gkn,gn->tn", x, weight, scale) + bias
    return (made * token_scale[..., None]).float()


def groups(group_list, is_counts, room):
    """The rows of each expert, which has some."""
    ends = group_list.cumsum(0) if is_counts else group_list
    start = 0
    for expert, end in enumerate(ends.tolist()):
        require(end <= room, "a group list", f"{end} of {room} rows")
        if end > start:
            yield expert, slice(start, end)
        start = end


@operator("npu::npu_dynamic_quant")
def dynamic_quant(
    input,
    *,
    smooth_scales=None,
    group_index=None,
    dst_type=None,
    quant_mode="pertoken",
    **rest,
):
    """Each token in eight bits, and its scale."""
    name = "npu_dynamic_quant"
    require_defaults(name, rest)
    require_defaults(name, {"smooth_scales": smooth_scales, "index": group_index})
    require(TYPES.get(dst_type) == torch.int8, name, f"dst_type={dst_type}")
    require(quant_mode == "pertoken", name, f"quant_mode={quant_mode}")
    return quantise(input)


@operator("npu::npu_quant_matmul")
def quant_matmul(
    x1, x2, scale, *, pertoken_scale=None, bias=None, output_dtype=None, **rest
):
    """The product times the scales, with a bias; the bare product as int32."""
    name = "npu_quant_matmul"
    require_defaults(name, rest)
    require(x1.dtype == x2.dtype == torch.int8, name, (x1.dtype, x2.dtype))
    made, kind = product(x1, x2), TYPES[output_dtype]
    if kind == torch.int32:
        require(bias is None and pertoken_scale is None, name, "scaled integers")
        return made.int()
    require(kind.is_floating_point and scale.is_floating_point(), name, kind)
    require(bias is None or bias.is_floating_point(), name, "a bias of integers")
    require(pertoken_scale is not None, name, "no pertoken_scale")
    made = scaled(made, scale, pertoken_scale)
    return (made if bias is None else made + bias.float()).to(kind)


def activated(made, limit=0.0):
    """SwiGLU of the products of up and gate, and that quantised."""
    require(limit in UNLIMITED, "SwiGLU", f"a limit of {limit}")
    return quantise(swiglu(made))


@operator("_C_ascend::npu_dequant_swiglu_quant")
def dequant_swiglu_quant(
    x,
    *,
    weight_scale=None,
    activation_scale=None,
    group_index=None,
    activate_left=True,
    quant_mode=0,
    swiglu_mode=0,
    clamp_limit=0.0,
    glu_alpha=1.0,
    glu_bias=0.0,
    **rest,
):
    """A product of int32 times its scales, SwiGLU, and that quantised.

    Weights have one scale a column, or with `group_index` one for each expert and
    column; `swiglu_mode` 1 is the same, with what the further arguments say.
    """
    name = "npu_dequant_swiglu_quant"
    require_defaults(name, rest)
    require(activate_left and quant_mode == 1, name, f"quant_mode={quant_mode}")
    require(glu_alpha == 1 and glu_bias == 0, name, "another activation")
    made = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    scales = weight_scale.view(-1, x.shape[-1])
    index = group_index
    if index is None:
        index = torch.tensor([x.shape[0]])
    for expert, rows in groups(index, True, x.shape[0]):
        made[rows] = scaled(x[rows], scales[expert], activation_scale[rows])
    return activated(made, clamp_limit)


@operator("_C_ascend::grouped_matmul_swiglu_quant_weight_nz")
def grouped_matmul_swiglu_quant(
    x, weight, weight_scale, x_scale, group_list, *, swiglu_limit=0.0, **rest
):
    """The first half of experts, of rows in their order; running sums, no offsets."""
    require_defaults("grouped_matmul_swiglu_quant_weight_nz", rest)
    lists = ([weight], [weight_scale], x_scale, group_list)
    made = grouped_matmul_swiglu_quant_v2(x, *lists, swiglu_limit=swiglu_limit)
    return *made, torch.zeros(0, device=x.device)


@operator("_C_ascend::grouped_matmul_swiglu_quant_v2")
def grouped_matmul_swiglu_quant_v2(
    x,
    weight,
    weight_scale,
    x_scale,
    group_list,
    smooth_scale=None,
    weight_assist_matrix=None,
    bias=None,
    dequant_mode=0,
    dequant_dtype=0,
    quant_mode=0,
    quant_dtype=0,
    transpose_weight=False,
    group_list_type=0,
    tuning_config=(),
    swiglu_limit=0.0,
):
    """Rows of each expert times its weight, SwiGLU, quantised."""
    name = "grouped_matmul_swiglu_quant_v2"
    modes = (dequant_mode, dequant_dtype, quant_mode, quant_dtype, transpose_weight)
    require(not any(modes), name, f"modes {modes}")
    require(smooth_scale is None and bias is None, name, "smooth scales or a bias")
    require(len(weight) == 1, name, "several weights")
    assist = weight_assist_matrix and weight_assist_matrix[0]
    scales = weight_scale[0]
    shape = (x.shape[0], scales.shape[-1])
    made = torch.zeros(shape, dtype=torch.float32, device=x.device)
    for expert, rows in groups(group_list, group_list_type == 1, x.shape[0]):
        more = (x_scale[rows], None if assist is None else assist[expert])
        made[rows] = scaled_product(x[rows], weight[0][expert], scales[expert], *more)
    return activated(made, swiglu_limit)
