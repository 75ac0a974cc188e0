"""Attention and its cache."""

import torch

from .registry import operator, require, require_defaults

Tensor = torch.Tensor
CAUSAL = 3
"""`sparse_mode` in which the last query sees the last key."""


def into_out(kernel):
    """The operator whose result goes into `out`, as a graph wants it; no sums do."""

    def run(*arguments, out, workspace=None, **rest):
        result, _ = kernel(*arguments, **rest)
        out[0].copy_(result.view_as(out[0]))

    return run


def max_workspace(query, key, value, **rest):
    """Memory that the kernels here do not need."""
    return torch.empty(1, dtype=torch.uint8, device=query.device)


for version in ("", "_v2"):
    attention = f"npu_fused_infer_attention_score{version}"
    operator(f"npu::_{attention}_get_max_workspace")(max_workspace)


@operator("atb::_npu_reshape_and_cache")
def reshape_and_cache(key, value, key_cache, value_cache, slot_indices):
    """Write keys and values into their slots; negative slots are left out."""
    slots = slot_indices.long()
    there = slots >= 0
    for tokens, cache in ((key, key_cache), (value, value_cache)):
        flat = cache.view(-1, *cache.shape[2:])
        chosen = tokens[: slots.shape[0]][there]
        flat[slots[there]] = chosen.view(-1, *cache.shape[2:]).to(cache.dtype)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    causal: bool = False,
    seen: Tensor | None = None,
):
    """Attention of one request, in float32.

    Args:
        query: [queries, heads, size].
        key: [keys, groups, size].
        value: [keys, groups, size of a value].
        scale: of the products.
        causal: the last query sees the last key; else each sees all.
        seen: which keys each query sees, [queries, keys].

    Returns:
        [queries, heads, size of a value], and the logarithms of the sums of the
        exponentials, [queries, heads, 1].
    """
    share = query.shape[1] // key.shape[1]
    k, v = (t.float().repeat_interleave(share, 1) for t in (key, value))
    scores = torch.einsum("thd,shd->hts", query.float() * scale, k)
    if causal:
        t, s = query.shape[0], key.shape[0]
        unseen = torch.ones(t, s, dtype=torch.bool, device=query.device)
        scores = scores.masked_fill(unseen.triu(s - t + 1), float("-inf"))
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0)  # where a query sees no key
    out = torch.einsum("hts,shd->thd", weights, v)
    return out.to(query.dtype), scores.logsumexp(-1).t()[..., None]


def _pages(cache: Tensor, blocks: Tensor, size: int, heads: int, length: int) -> Tensor:
    """The first `length` keys or values of a request: [length, heads, size]."""
    return cache.view(cache.shape[0], size, heads, -1)[blocks].flatten(0, 1)[:length]


@operator("npu::npu_fused_infer_attention_score")
def fused_infer_attention_score(
    query,
    key,
    value,
    *,
    atten_mask=None,
    actual_seq_lengths=None,
    actual_seq_lengths_kv=None,
    block_table=None,
    num_heads=1,
    scale=1.0,
    pre_tokens=2147483647,
    next_tokens=2147483647,
    input_layout="BSH",
    num_key_value_heads=0,
    sparse_mode=0,
    block_size=0,
    softmax_lse_flag=False,
    query_rope=None,
    key_rope=None,
    **rest,
):
    """Attention over packed requests; keys and values in pages, or packed too."""
    name = "npu_fused_infer_attention_score"
    require_defaults(name, rest)
    require(sparse_mode in (0, CAUSAL), name, f"sparse_mode={sparse_mode}")
    require(input_layout == "TND", name, f"input_layout={input_layout}")
    if query_rope is not None:
        require(block_table is None, name, "query_rope, and pages")
        kinds = {t.dtype for t in (query, key, value, query_rope, key_rope)}
        require(len(kinds) == 1, name, f"several types, {kinds}")
        query = torch.cat((query, query_rope), -1)
        key = torch.cat((key, key_rope), -1)
    heads = num_key_value_heads or num_heads
    size = query.shape[-1] if block_table is not None else value.shape[-1]
    out = torch.zeros((*query.shape[:2], size), dtype=query.dtype, device=query.device)
    sums = torch.full(
        (*query.shape[:2], 1), float("inf"), dtype=torch.float32, device=query.device
    )
    start = key_start = 0
    for i, end in enumerate(actual_seq_lengths):
        length = actual_seq_lengths_kv[i]
        if block_table is None:
            k, v = (t[key_start:length] for t in (key, value))
            key_start = length
        else:
            blocks = block_table[i, : (length + block_size - 1) // block_size].long()
            k, v = (_pages(t, blocks, block_size, heads, length) for t in (key, value))
        if end > start and k.shape[0]:
            causal = sparse_mode == CAUSAL
            out[start:end], sums[start:end] = attend(
                query[start:end], k, v, scale, causal
            )
        start = end
    if not softmax_lse_flag:
        sums = torch.zeros(1, dtype=torch.float32, device=query.device)
    return out, sums


operator("npu::npu_fused_infer_attention_score.out", returns=("out",))(
    into_out(fused_infer_attention_score)
)
