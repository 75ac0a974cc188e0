"""Operators that communicate inside: MC2's dispatch, experts, and combine.

Each rank publishes all it has and takes what is its own.
"""

import ctypes

import torch

from .layers import swiglu
from .quantised import UNLIMITED, activated, quantise, scaled_product
from .registry import operator, require, require_defaults

INFO = 128
"""int32 values a row of `assist_info_for_combine` has on the device; three are used."""

DYNAMIC = 2
"""`quant_mode`: each token by its own scale."""

_library = None


def _hccl():
    global _library
    if _library is None:
        _library = ctypes.CDLL("libemulated_cann.so")
        _library.emulator_group.restype = ctypes.c_void_p
        _library.emulator_group.argtypes = [ctypes.c_char_p]
        pointer = ctypes.c_void_p
        _library.emulator_all_gather.argtypes = [
            pointer,
            pointer,
            ctypes.c_uint64,
            pointer,
        ]
    return _library


def _handle(group: str) -> int:
    handle = _hccl().emulator_group(group.encode())
    require(handle is not None, "a group", group)
    return handle


def _size_and_rank(group: str) -> tuple[int, int]:
    size, rank = ctypes.c_uint32(), ctypes.c_uint32()
    handle = ctypes.c_void_p(_handle(group))
    _hccl().HcclGetRankSize(handle, ctypes.byref(size))
    _hccl().HcclGetRankId(handle, ctypes.byref(rank))
    return size.value, rank.value


def _gather_equal(group: str, tensor: torch.Tensor, ranks: int) -> torch.Tensor:
    """[ranks, *tensor.shape], equal shapes on all ranks."""
    handle = _handle(group)
    tensor = tensor.contiguous()
    out = torch.empty((ranks, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    size = tensor.numel() * tensor.element_size()
    error = _hccl().emulator_all_gather(tensor.data_ptr(), out.data_ptr(), size, handle)
    if error:
        raise RuntimeError(f"[emulator] group {group}: error {error}, named on stderr")
    return out


def gather(group: str, tensor: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    """The tensors of all ranks, which may differ in their first dimension."""
    rows = torch.tensor([tensor.shape[0]], device=tensor.device)
    lengths = _gather_equal(group, rows, ranks).flatten().tolist()
    most = max(lengths)
    padded = torch.zeros(
        (most, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device
    )
    padded[: tensor.shape[0]] = tensor
    every = _gather_equal(group, padded, ranks)
    return [every[r, :length] for r, length in enumerate(lengths)]


@operator("npu::npu_moe_distribute_dispatch_v2")
def distribute_dispatch(
    x,
    expert_ids,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    *,
    scales=None,
    x_active_mask=None,
    expert_scales=None,
    group_tp="",
    tp_world_size=0,
    tp_rank_id=0,
    expert_shard_type=0,
    shared_expert_num=1,
    shared_expert_rank_num=0,
    quant_mode=0,
    global_bs=0,
    expert_token_nums_type=1,
    **rest,
):
    """Tokens of all ranks for this rank's experts, by expert, then rank, then token.

    The second result has their scales, if they are quantised on the way.
    """
    name = "npu_moe_distribute_dispatch_v2"
    require_defaults(name, rest)
    require(scales is None, name, "smooth scales")
    require(quant_mode in (0, DYNAMIC), name, f"quant_mode={quant_mode}")
    require(
        tp_world_size in (0, 1) and shared_expert_rank_num == 0, name, "tensor ranks"
    )
    ids = expert_ids
    if x_active_mask is not None:
        require(x_active_mask.dim() == 1, name, "a mask of experts")
        ids = ids.masked_fill(~x_active_mask[: ids.shape[0], None], -1)
    units = torch.ones(x.shape[0], device=x.device)
    if quant_mode == DYNAMIC:
        x, units = quantise(x)
    tokens, choices, units = (
        gather(group_ep, t, ep_world_size) for t in (x, ids, units)
    )
    local = moe_expert_num // ep_world_size
    first = ep_rank_id * local
    counts = torch.zeros(local, ep_world_size, dtype=torch.int32)
    taken, scale, info = [], [], []
    for expert in range(local):
        for rank in range(ep_world_size):
            token, choice = (choices[rank] == first + expert).nonzero(as_tuple=True)
            counts[expert, rank] = token.numel()
            taken.append(tokens[rank][token])
            scale.append(units[rank][token])
            source = torch.full_like(token, rank)
            info.append(torch.stack((source, token, choice), -1).int())
    rows = torch.cat(taken)
    k = expert_ids.shape[1]
    room = (global_bs or x.shape[0] * ep_world_size) * min(local, k)
    expanded = torch.zeros(room, x.shape[1], dtype=x.dtype, device=x.device)
    expanded[: rows.shape[0]] = rows
    expanded_scale = torch.zeros(room, dtype=torch.float32, device=x.device)
    expanded_scale[: rows.shape[0]] = torch.cat(scale)
    assist = torch.full((room, INFO), -1, dtype=torch.int32, device=x.device)
    assist[: rows.shape[0], :3] = torch.cat(info)
    numbers = counts.sum(1).long()
    if expert_token_nums_type == 0:
        numbers = numbers.cumsum(0)
    nothing = torch.zeros(1, dtype=torch.float32, device=x.device)
    return (
        expanded,
        expanded_scale,
        assist.flatten(),
        numbers.to(x.device),
        counts.flatten().cumsum(0).int().to(x.device),
        nothing.int(),
        nothing,
    )


@operator("npu::npu_moe_distribute_combine_v2")
def distribute_combine(
    expand_x,
    expert_ids,
    assist_info_for_combine,
    ep_send_counts,
    expert_scales,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    *,
    tp_send_counts=None,
    x_active_mask=None,
    expand_scales=None,
    shared_expert_x=None,
    group_tp="",
    tp_world_size=0,
    tp_rank_id=0,
    expert_shard_type=0,
    shared_expert_num=1,
    shared_expert_rank_num=0,
    global_bs=0,
    comm_quant_mode=0,
    **rest,
):
    """The weighted sums of what the experts made of this rank's tokens."""
    name = "npu_moe_distribute_combine_v2"
    require_defaults(name, rest)
    require(comm_quant_mode == 0 and shared_expert_x is None, name, "quantisation")
    require(tp_world_size in (0, 1), name, "tensor ranks")
    count = int(ep_send_counts[-1])
    info = assist_info_for_combine.view(-1, INFO)[:count, :3].contiguous()
    out = torch.zeros(
        expert_ids.shape[0],
        expand_x.shape[1],
        dtype=torch.float32,
        device=expand_x.device,
    )
    rows = gather(group_ep, expand_x[:count], ep_world_size)
    places = gather(group_ep, info, ep_world_size)
    for made, place in zip(rows, places, strict=True):
        mine = place[:, 0] == ep_rank_id
        token, choice = place[mine, 1].long(), place[mine, 2].long()
        weights = expert_scales[token, choice].float()
        out.index_add_(0, token, made[mine].float() * weights[:, None])
    return out.to(expand_x.dtype)


@operator("_C_ascend::dispatch_ffn_combine", returns=("out", "expert_token_nums"))
def dispatch_ffn_combine(
    x,
    weight1,
    weight2,
    expert_idx,
    scale1,
    scale2,
    bias1,
    bias2,
    probs,
    group,
    max_output_size,
    out,
    expert_token_nums,
    x_active_mask=None,
    swiglu_limit=1000000.0,
):
    """Each token's weighted sum of what its experts, on all ranks, make of it.

    Each rank computes what its experts add to the tokens of all ranks. Weights of
    integers have scales, and tokens are quantised.
    """
    name = "dispatch_ffn_combine"
    require(swiglu_limit in UNLIMITED, name, f"swiglu_limit={swiglu_limit}")
    ids = expert_idx
    if x_active_mask is not None:
        ids = ids.masked_fill(~x_active_mask[: ids.shape[0], None], -1)
    ranks, rank = _size_and_rank(group)
    tokens, choices, shares = (
        gather(group, t, ranks) for t in (x, ids.int(), probs.float())
    )
    lengths = [t.shape[0] for t in tokens]
    tokens, choices, shares = map(torch.cat, (tokens, choices, shares))
    first, second = map(_by_expert, (weight1, weight2))
    four, integers = first[0].dtype == torch.int32, not first[0].is_floating_point()
    require(integers == any(t.numel() for t in (*scale1, *scale2)), name, "scales")
    require(four == any(t.numel() for t in (*bias1, *bias2)), name, "a bias")
    if integers:
        parts = [scale1, scale2, *((bias1, bias2) if four else ())]
        halves = [_by_expert_flat(p, len(first)) for p in parts]
    added = torch.zeros_like(tokens, dtype=torch.float32)
    for local, (up, down) in enumerate(zip(first, second, strict=True)):
        token, choice = (choices == rank * len(first) + local).nonzero(as_tuple=True)
        expert_token_nums.view(-1)[local] = token.numel()
        if integers:
            rows, unit = quantise(tokens[token])
            own = [half[local] for half in halves]
            made = scaled_product(rows, up, own[0], unit, *own[2:3])
            rows, unit = activated(made)
            made = scaled_product(rows, down, own[1], unit, *own[3:])
        else:
            made = swiglu(tokens[token] @ up) @ down
        added.index_add_(0, token, made.float() * shares[token, choice][:, None])
    taken = int(expert_token_nums.view(-1)[: len(first)].sum())
    require(taken <= max_output_size, name, f"more than {max_output_size} rows")
    sums = torch.stack(gather(group, added, ranks)).sum(0)
    out.copy_(sums.split(lengths)[rank])
    return out, expert_token_nums


def _by_expert(weights):
    """One matrix for each expert, of one tensor for all or one for each."""
    return [matrix for w in weights for matrix in (w if w.dim() == 3 else [w])]


def _by_expert_flat(tensors, experts):
    """One row for each expert of its scales, or of a bias."""
    return torch.cat([t.flatten() for t in tensors]).view(experts, -1)
