"""Attention to those keys that an indexer chooses (DSA), over pages."""

import torch

from .attention import CAUSAL, attend
from .registry import operator, require, require_defaults

LATENT = 2
"""`attention_mode` in which keys are latent and have a rotated part beside them."""


def contexts(name, ends, lengths, block_table, caches, layouts, sparse_mode):
    """Of each request its queries, its part of each cache, and what a query may see.

    Caches are [pages, tokens, 1, size], and the last query sees the last key.
    """
    require(layouts == ("TND", "PA_BSND"), name, f"layouts {layouts}")
    require(sparse_mode == CAUSAL, name, f"sparse_mode={sparse_mode}")
    start, size = 0, caches[0].shape[1]
    for i, (end, length) in enumerate(
        zip(ends.tolist(), lengths.tolist(), strict=True)
    ):
        if length and end > start:
            blocks = block_table[i, : (length + size - 1) // size].long()
            parts = [cache[blocks].flatten(0, 1)[:length] for cache in caches]
            at = torch.arange(length, device=block_table.device)
            last = torch.arange(start - end, 0, device=block_table.device) + length
            yield slice(start, end), parts, at <= last[:, None]
        start = end


@operator("npu::npu_lightning_indexer")
def lightning_indexer(
    query,
    key,
    weights,
    *,
    actual_seq_lengths_query=None,
    actual_seq_lengths_key=None,
    block_table=None,
    layout_query="BSND",
    layout_key="BSND",
    sparse_count=2048,
    sparse_mode=3,
    pre_tokens=0,
    next_tokens=0,
    return_value=False,
):
    """The keys with the best sum of weighted ReLUs over the heads of a query.

    The best comes first; -1 stands where there are fewer than `sparse_count`.
    """
    name = "npu_lightning_indexer"
    require(not return_value, name, "return_value")
    chosen = torch.full(
        (query.shape[0], 1, sparse_count), -1, dtype=torch.int32, device=query.device
    )
    for rows, (keys,), seen in contexts(
        name,
        actual_seq_lengths_query,
        actual_seq_lengths_key,
        block_table,
        [key],
        (layout_query, layout_key),
        sparse_mode,
    ):
        heads = zip(query[rows].unbind(1), weights[rows].unbind(1), strict=True)
        scores = torch.zeros(seen.shape, device=query.device)
        for q, weight in heads:
            scores += (q.float() @ keys[:, 0].float().t()).relu() * weight[:, None]
        scores.masked_fill_(~seen, float("-inf"))
        best = scores.topk(min(sparse_count, keys.shape[0]), -1)
        found = best.indices.masked_fill(best.values == float("-inf"), -1)
        chosen[rows, 0, : found.shape[1]] = found.int()
    return chosen, torch.empty(0, dtype=query.dtype, device=query.device)


@operator("_C_ascend::npu_sparse_flash_attention")
def sparse_flash_attention(
    query,
    key,
    value,
    sparse_indices,
    scale_value,
    *,
    block_table=None,
    actual_seq_lengths_query=None,
    actual_seq_lengths_kv=None,
    query_rope=None,
    key_rope=None,
    sparse_block_size=1,
    layout_query="BSND",
    layout_kv="BSND",
    sparse_mode=3,
    pre_tokens=0,
    next_tokens=0,
    attention_mode=LATENT,
    **rest,
):
    """Attention of each query to the keys of its row of indices; below 0 is none."""
    name = "npu_sparse_flash_attention"
    require_defaults(name, rest)
    require(sparse_block_size == 1, name, f"sparse_block_size={sparse_block_size}")
    require(attention_mode == LATENT, name, f"attention_mode={attention_mode}")
    out, none = torch.zeros_like(query), torch.empty(0, device=query.device)
    asked = torch.cat((query, query_rope), -1)
    for rows, (keys, rope, values), seen in contexts(
        name,
        actual_seq_lengths_query,
        actual_seq_lengths_kv,
        block_table,
        [key, key_rope, value],
        (layout_query, layout_kv),
        sparse_mode,
    ):
        indices = sparse_indices[rows, 0].long()
        end = keys.shape[0]
        indices = indices.masked_fill(indices < 0, end).clamp(max=end)
        chosen = seen.new_zeros((seen.shape[0], end + 1))
        chosen = chosen.scatter(1, indices, True)[:, :end] & seen
        out[rows], _ = attend(
            asked[rows],
            torch.cat((keys, rope), -1),
            values,
            scale_value,
            seen=chosen,
        )
    return out, none, none
