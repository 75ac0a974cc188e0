"""Attention over latent keys and values (MLA)."""

import torch

from .attention import CAUSAL, attend, into_out
from .layers import interleave_rope, rms_norm
from .registry import operator, require, require_defaults


@operator("npu::npu_kv_rmsnorm_rope_cache")
def kv_rmsnorm_rope_cache(
    kv,
    gamma,
    cos,
    sin,
    index,
    k_cache,
    ckv_cache,
    *,
    epsilon=1e-5,
    cache_mode="Norm",
    is_output_kv=False,
    **rest,
):
    """Norm the latent part, rotate the other, write both into their slots.

    Returns the caches, and the rotated and the normed part of each token.
    """
    name = "npu_kv_rmsnorm_rope_cache"
    require_defaults(name, rest)
    require(cache_mode == "PA", name, f"cache_mode={cache_mode}")
    latent, rotated = kv.split([gamma.shape[0], kv.shape[-1] - gamma.shape[0]], -1)
    latent, _ = rms_norm(latent, gamma, epsilon)
    rotated = interleave_rope(rotated, cos, sin)
    slots = index.long()
    there = slots >= 0
    for part, cache in ((rotated, k_cache), (latent, ckv_cache)):
        flat = cache.view(-1, *cache.shape[2:])
        chosen = part.flatten(0, 2)[: slots.shape[0]][there]
        flat[slots[there]] = chosen.view(-1, *cache.shape[2:]).to(cache.dtype)
    return k_cache, ckv_cache, rotated, latent


@operator("npu::npu_fused_infer_attention_score_v2")
def fused_infer_attention_score_v2(
    query,
    key,
    value,
    *,
    query_rope=None,
    key_rope=None,
    atten_mask=None,
    actual_seq_qlen=None,
    actual_seq_kvlen=None,
    block_table=None,
    num_query_heads=1,
    num_key_value_heads=0,
    softmax_scale=1.0,
    pre_tokens=2147483647,
    next_tokens=2147483647,
    input_layout="BSH",
    sparse_mode=0,
    block_size=0,
    return_softmax_lse=False,
    **rest,
):
    """Queries over the pages of the latent contexts of their requests.

    Args are torch_npu's: queries are [requests, heads, 1, size], one of each request,
    or in the layout `TND_NTD` [tokens, heads, size]; caches are [pages, heads of keys,
    tokens, size]. Heads come first in the result.
    """
    name = "npu_fused_infer_attention_score_v2"
    require_defaults(name, rest)
    one_each = input_layout == "BNSD_NBSD"
    require(one_each or input_layout == "TND_NTD", name, f"input_layout={input_layout}")
    require(
        sparse_mode == (0 if one_each else CAUSAL), name, f"sparse_mode={sparse_mode}"
    )
    require(
        num_key_value_heads == 1, name, f"num_key_value_heads={num_key_value_heads}"
    )
    require(query_rope is not None and not return_softmax_lse, name, "no rope")
    asked = torch.cat((query, query_rope), -1)
    if one_each:
        asked = asked[:, :, 0]
    tokens, heads, _ = asked.shape
    out = torch.zeros(
        (heads, tokens, value.shape[-1]), dtype=query.dtype, device=query.device
    )
    ends = range(1, tokens + 1) if one_each else actual_seq_qlen
    start = 0
    for i, (end, length) in enumerate(zip(ends, actual_seq_kvlen, strict=False)):
        if length and end > start:
            blocks = block_table[i, : (length + block_size - 1) // block_size].long()
            k, rope, v = (
                cache[blocks].transpose(1, 2).flatten(0, 1)[:length]
                for cache in (key, key_rope, value)
            )
            keys = torch.cat((k, rope), -1)
            attended, _ = attend(asked[start:end], keys, v, softmax_scale, True)
            out[:, start:end] = attended.transpose(0, 1)
        start = end
    if one_each:
        out = out[:, :, None]
    return out, torch.zeros(1, dtype=torch.float32, device=query.device)


operator("npu::npu_fused_infer_attention_score_v2.out", returns=("out",))(
    into_out(fused_infer_attention_score_v2)
)


@operator("npu::npu_transpose_batchmatmul")
def transpose_batchmatmul(
    input, weight, *, perm_x1=None, perm_x2=None, perm_y=None, **rest
):
    """[n, b, i], or with `perm_x1` [b, n, i], times [n, i, o], as [b, n, o]."""
    name = "npu_transpose_batchmatmul"
    require(not rest or rest.pop("batch_split_factor", 1) == 1, name, "a split")
    require_defaults(name, rest)
    orders = [
        list(perm or default)
        for perm, default in (
            (perm_x1, (0, 1, 2)),
            (perm_x2, (0, 1, 2)),
            (perm_y, (1, 0, 2)),
        )
    ]
    require(orders[1:] == [[0, 1, 2], [1, 0, 2]], name, f"orders {orders}")
    return torch.bmm(input.permute(orders[0]), weight).transpose(0, 1).contiguous()


@operator("atb::npu_paged_cache_load.out", returns=("key", "value"))
def paged_cache_load(
    key_cache,
    value_cache,
    block_table,
    context_lens,
    *,
    seq_starts=None,
    cumsum=False,
    key,
    value,
):
    """Copy tokens of each request out of their pages, one request after the other."""
    require(not cumsum, "npu_paged_cache_load", "cumsum")
    lengths = context_lens.tolist()
    starts = [0] * len(lengths) if seq_starts is None else seq_starts.tolist()
    size, end = key_cache.shape[1], 0
    for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        at = torch.arange(start, start + length, device=key_cache.device)
        pages = block_table[i].long()[at // size]
        for cache, out in ((key_cache, key), (value_cache, value)):
            out[end : end + length] = cache[pages, at % size]
        end += length
    return key, value


@operator("npu::npu_attention_update")
def attention_update(lse, local_out, update_type):
    """Attention over all keys, of the results over parts of them.

    `lse` are the logarithms of the sums of exponentials; infinite where a part has no
    key. One row for each token and head.
    """
    require(update_type == 0, "npu_attention_update", f"update_type={update_type}")
    sums = torch.stack(list(lse))
    sums = sums.masked_fill(sums == float("inf"), float("-inf"))
    shares = sums.softmax(0)
    outs = torch.stack(list(local_out)).float()
    merged = (outs * shares[..., None]).sum(0).to(local_out[0].dtype)
    return merged, torch.zeros(1, dtype=torch.float32, device=merged.device)
