"""Norms and activations. Rotary embeddings are Triton's, by its interpreter."""

import torch
import torch.nn.functional as F  # noqa: N812

from .registry import operator


@operator("npu::npu_rms_norm")
def rms_norm(input, gamma, epsilon=1e-6):
    """y = x / sqrt(mean(x²) + epsilon) · gamma in float32; also 1 / sqrt(…)."""
    x = input.float()
    dims = tuple(range(-gamma.dim(), 0))
    rstd = torch.rsqrt(x.pow(2).mean(dims, keepdim=True) + epsilon)
    return (x * rstd * gamma.float()).to(input.dtype), rstd


@operator("_C_ascend::npu_add_rms_norm_bias")
def add_rms_norm_bias(x1, x2, gamma, beta=None, epsilon=1e-6):
    """The norm of a sum, with a bias after it; also 1 / sqrt(…) and the sum."""
    x = x1 + x2
    y, rstd = rms_norm(x, gamma, epsilon)
    return (y if beta is None else y + beta), rstd, x


@operator("npu::npu_add_rms_norm")
def add_rms_norm(x1, x2, gamma, epsilon=1e-6):
    """The norm of a sum; also 1 / sqrt(…) and the sum."""
    return add_rms_norm_bias(x1, x2, gamma, None, epsilon)


@operator("npu::npu_interleave_rope")
def interleave_rope(x, cos, sin):
    """Pairs of neighbours become halves, then the halves are rotated: [B, N, S, D]."""
    a, b = x[..., ::2].float(), x[..., 1::2].float()
    x, turned = torch.cat((a, b), -1), torch.cat((-b, a), -1)
    return (x * cos.float() + turned * sin.float()).to(cos.dtype)


@operator("npu::npu_swiglu")
def swiglu(input, dim=-1):
    """silu(a) · b of the two halves along `dim`, in float32."""
    a, b = input.float().chunk(2, dim)
    return (F.silu(a) * b).to(input.dtype)
