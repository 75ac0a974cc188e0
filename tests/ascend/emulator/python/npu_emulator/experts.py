"""Mixture of experts: choice, order, products."""

import torch

from .quantised import TYPES, groups, product, quantise, scaled_product
from .registry import operator, require, require_defaults

COUNTS = 1
"""`group_list_type` and `expert_tokens_num_type`: counts, not their running sums."""


@operator("_C_ascend::moe_gating_top_k")
def moe_gating_top_k(
    x,
    k,
    k_group=1,
    group_count=1,
    group_select_mode=0,
    renorm=0,
    norm_type=0,
    out_flag=False,
    routed_scaling_factor=1.0,
    eps=1e-20,
    bias_opt=None,
):
    """The k best experts of each token, and their weights.

    `norm_type` 0 is softmax, 1 sigmoid. With groups, only the `k_group` best of
    `group_count` take part; a group counts by its best expert, or with
    `group_select_mode` 1 by its two best.
    """
    require(norm_type in (0, 1), "moe_gating_top_k", f"norm_type={norm_type}")
    scores = x.float().softmax(-1) if norm_type == 0 else x.float().sigmoid()
    choice = scores if bias_opt is None else scores + bias_opt.float()
    if group_count > 1:
        groups = choice.unflatten(-1, (group_count, -1))
        best = 2 if group_select_mode else 1
        rank = groups.topk(best, -1)[0].sum(-1)
        kept = torch.zeros_like(rank).scatter_(-1, rank.topk(k_group, -1)[1], 1.0)
        choice = groups.masked_fill(kept[..., None] == 0, float("-inf")).flatten(-2)
    ids = choice.topk(k, -1)[1]
    weights = scores.gather(-1, ids)
    if renorm or norm_type == 1:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    return (weights * routed_scaling_factor).to(x.dtype), ids.int(), scores


@operator("_C_ascend::npu_moe_init_routing_custom", "npu::npu_moe_init_routing_v2")
def moe_init_routing(
    x,
    expert_idx,
    *,
    scale=None,
    offset=None,
    active_num=-1,
    expert_capacity=-1,
    expert_num=-1,
    drop_pad_mode=0,
    expert_tokens_num_type=0,
    expert_tokens_num_flag=False,
    quant_mode=-1,
    active_expert_range=(),
    row_idx_type=0,
    **rest,
):
    """Copies of the tokens in the order of their experts.

    Returns the copies of experts in `active_expert_range` (zeros after them), where the
    copy of each (token, choice) lies or -1, the tokens of each expert, and the scales
    of the copies: those given, or with `quant_mode` 1 of what it quantises.
    """
    name = "npu_moe_init_routing"
    require_defaults(name, rest | {"offset": offset})
    require(drop_pad_mode == 0, name, "capacity")
    require(quant_mode in (-1, 1), name, f"quant_mode={quant_mode}")
    if quant_mode == 1:
        require(scale is None, name, "smooth scales")
        x, scale = quantise(x)
    require(expert_tokens_num_type == COUNTS, name, expert_tokens_num_type)
    require(row_idx_type == 0, name, f"row_idx_type={row_idx_type}")
    low, high = active_expert_range or (0, expert_num)
    k = expert_idx.shape[1]
    flat = expert_idx.flatten().long()
    active = (flat >= low) & (flat < high)
    last = torch.full_like(flat, 1 << 30)
    order = torch.where(active, flat, last).argsort(stable=True)
    count = int(active.sum())
    chosen = order[:count]
    device = x.device
    rows = torch.full((flat.numel(),), -1, dtype=torch.int32, device=device)
    rows[chosen] = torch.arange(count, dtype=torch.int32, device=device)
    copies = torch.zeros(flat.numel(), x.shape[-1], dtype=x.dtype, device=device)
    copies[:count] = x[chosen // k]
    tokens = torch.bincount(flat[active] - low, minlength=high - low)[: high - low]
    scales = torch.zeros(flat.numel(), dtype=torch.float32, device=device)
    if scale is not None:
        scales[:count] = scale[chosen // k]
    return copies, rows, tokens, scales


@operator("npu::npu_moe_token_permute")
def moe_token_permute(tokens, indices, num_out_tokens=None, padded_mode=False):
    """Copies of the tokens in the order of their experts, and where each copy lies."""
    require(not padded_mode, "npu_moe_token_permute", "padded_mode")
    k = indices.shape[1] if indices.dim() == 2 else 1
    order = indices.flatten().long().argsort(stable=True)
    rows = torch.empty_like(order)
    rows[order] = torch.arange(order.numel(), device=tokens.device)
    return tokens[order[: num_out_tokens or order.numel()] // k], rows.int()


@operator("npu::npu_moe_token_unpermute")
def moe_token_unpermute(
    permuted_tokens, sorted_indices, probs=None, padded_mode=False, restore_shape=None
):
    """The inverse of `npu_moe_token_permute`; with `probs` the weighted sum of copies.

    An index without a row, as of another rank's expert, adds nothing.
    """
    require(not padded_mode, "npu_moe_token_unpermute", "padded_mode")
    index = sorted_indices.long()
    there = (index >= 0) & (index < permuted_tokens.shape[0])
    rows = permuted_tokens[index.clamp(0, max(permuted_tokens.shape[0] - 1, 0))]
    rows = rows.masked_fill(~there[:, None], 0)
    if probs is None:
        return rows
    t, k = probs.shape
    weighted = rows.view(t, k, -1).float() * probs.float()[..., None]
    return weighted.sum(1).to(permuted_tokens.dtype)


@operator("npu::npu_grouped_matmul")
def grouped_matmul(
    x,
    weight,
    *,
    bias=None,
    scale=None,
    per_token_scale=None,
    group_list=None,
    split_item=0,
    group_type=None,
    group_list_type=0,
    output_dtype=None,
    **rest,
):
    """Rows of each expert, in order, times its weight; zeros after the last.

    Of integers it is the bare product as int32, or that times both scales; a bias
    belongs to weights of four bits.
    """
    name = "npu_grouped_matmul"
    require_defaults(name, rest)
    require(len(x) == len(weight) == 1 and group_type == 0, name, "several groups of x")
    require(group_list_type in (0, COUNTS), name, f"group_list_type={group_list_type}")
    rows, weights = x[0], weight[0]
    kind = rows.dtype if output_dtype is None else TYPES[output_dtype]
    integers = rows.dtype == torch.int8
    four = weights.dtype == torch.int32
    require(integers == (four or weights.dtype == torch.int8), name, weights.dtype)
    require(integers or not (scale or output_dtype), name, "scales of numbers")
    require(not integers or (kind != torch.int8 and bool(bias) == four), name, kind)
    columns = (scale[0] if four else weights).shape[-1]
    out = torch.zeros(rows.shape[0], columns, dtype=kind, device=rows.device)
    for expert, part in groups(group_list, group_list_type == COUNTS, rows.shape[0]):
        own = bias and bias[0][expert]
        if kind == torch.int32:
            made = product(rows[part], weights[expert])
        elif integers:
            scales = (scale[0][expert], per_token_scale[0][part])
            made = scaled_product(rows[part], weights[expert], *scales, own)
        else:
            made = rows[part] @ weights[expert]
            if bias:
                made += own.to(rows.dtype)
        out[part] = made.to(kind)
    return [out]
