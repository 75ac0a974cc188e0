"""Norms, activations, rotary embeddings."""

import torch
import torch.nn.functional as F  # noqa: N812

from .registry import operator, require

Tensor = torch.Tensor


@operator("npu::npu_rms_norm")
def rms_norm(input, gamma, epsilon=1e-6):
    """y = x / sqrt(mean(x²) + epsilon) · gamma in float32; also 1 / sqrt(…)."""
    x = input.float()
    dims = tuple(range(-gamma.dim(), 0))
    rstd = torch.rsqrt(x.pow(2).mean(dims, keepdim=True) + epsilon)
    return (x * rstd * gamma.float()).to(input.dtype), rstd


@operator("npu::npu_add_rms_norm")
def add_rms_norm(x1, x2, gamma, epsilon=1e-6):
    """The norm of a sum; also 1 / sqrt(…) and the sum."""
    x = x1 + x2
    y, rstd = rms_norm(x, gamma, epsilon)
    return y, rstd, x


@operator("_C_ascend::npu_add_rms_norm_bias")
def add_rms_norm_bias(x1, x2, gamma, beta=None, epsilon=1e-6):
    """`npu_add_rms_norm`, with a bias after it."""
    y, rstd, x = add_rms_norm(x1, x2, gamma, epsilon)
    return (y if beta is None else y + beta), rstd, x


@operator("npu::npu_swiglu")
def swiglu(input, dim=-1):
    """silu(a) · b of the two halves along `dim`, in float32."""
    a, b = input.float().chunk(2, dim)
    return (F.silu(a) * b).to(input.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, neox: bool) -> Tensor:
    """Rotate the first values of each head.

    Args:
        x: [tokens, heads, size].
        cos: [tokens, 1, rotated / 2].
        sin: as `cos`.
        neox: the pairs are a half apart, not neighbours.

    Returns:
        The rotated values, float32, [tokens, heads, rotated].
    """
    part = x[..., : cos.shape[-1] * 2].float()
    if neox:
        a, b = part.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    a, b = part[..., ::2], part[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


@operator("atb::_npu_rotary_embedding")
def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox_style):
    """Rotates query and key in place, by a table of cosines and sines."""
    table = cos_sin_cache.index_select(0, positions.flatten()).float()
    cos, sin = (half[:, None] for half in table.chunk(2, -1))
    for t in (query, key):
        heads = t.view(t.shape[0], -1, head_size)
        turned = rotate(heads, cos, sin, is_neox_style)
        heads[..., : turned.shape[-1]] = turned.to(t.dtype)


@operator("npu::npu_rotary_mul")
def rotary_mul(input, r1, r2, rotary_mode="half", rotate=None):
    """x · r1 + turned(x) · r2, in halves or in pairs."""
    require(rotate is None, "npu_rotary_mul", "rotate")
    x = input.float()
    if rotary_mode == "half":
        a, b = x.chunk(2, -1)
        turned = torch.cat((-b, a), -1)
    else:
        require(rotary_mode == "interleave", "npu_rotary_mul", rotary_mode)
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return (x * r1.float() + turned * r2.float()).to(input.dtype)
