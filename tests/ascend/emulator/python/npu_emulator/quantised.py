"""Products of integers of eight bits: quantised tokens with quantised weights."""

import torch

from .layers import swiglu
from .registry import operator, require, require_defaults

LARGEST = 127
TYPES = {
    None: torch.int8,
    **{1: torch.int8, 3: torch.int32, 5: torch.float16, 6: torch.float32},
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


def _grouped_swiglu(x, weight, weight_scale, x_scale, group_list, limit):
    """Rows of each expert times its weight, SwiGLU, quantised; no offsets."""
    columns = weight_scale[0].shape[-1]
    made = torch.zeros(x.shape[0], columns, dtype=torch.float32, device=x.device)
    for expert, rows in groups(group_list, False, x.shape[0]):
        raw = product(x[rows], weight[expert])
        made[rows] = scaled(raw, weight_scale[expert], x_scale[rows])
    return *activated(made, limit), torch.zeros(0, device=x.device)


@operator("_C_ascend::grouped_matmul_swiglu_quant_weight_nz")
def grouped_matmul_swiglu_quant(
    x, weight, weight_scale, x_scale, group_list, *, swiglu_limit=0.0, **rest
):
    """The first half of experts, of rows in their order; running sums."""
    require_defaults("grouped_matmul_swiglu_quant_weight_nz", rest)
    return _grouped_swiglu(x, weight, weight_scale, x_scale, group_list, swiglu_limit)
