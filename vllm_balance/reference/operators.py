"""The operators of ``torch.ops._C`` that the engine calls on a CPU, in PyTorch.

Seam: ``Platform.import_kernels``. vLLM's CPU build compiles these from ``csrc/cpu``;
its attention backend, block table and rejection sampler call them by name. The schemas
are those of the compiled library, so that upstream's callers stay as they are. Where
they differ between the releases that this distribution supports, both stand here: as
arguments with a default, or as two overloads, of which torch takes the one that fits.

Shapes: a key or value cache is ``[blocks, kv heads, block size, head size]``, a token
tensor is ``[tokens, heads, head size]``. A slot is ``block * block size + offset``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  the name PyTorch's users know

_library = torch.library.Library("_C", "FRAGMENT")


def operator(schema: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Define ``schema`` in ``torch.ops._C`` and implement it by the function."""

    def register(function: Callable[..., object]) -> Callable[..., object]:
        name = schema.partition("(")[0]
        _library.define(schema)
        _library.impl(name, function, "CompositeExplicitAutograd")
        return function

    return register


@operator("init_cpu_memory_env(SymInt[] node_ids) -> ()")
def init_cpu_memory_env(node_ids: Sequence[int]) -> None:
    """Bind memory to NUMA nodes: nothing to do where speed does not count."""


@operator("silu_and_mul(Tensor(a0!) result, Tensor input) -> ()")
def silu_and_mul(result: torch.Tensor, gates: torch.Tensor) -> None:
    """Write SwiGLU of ``gates`` ``[..., 2 n]`` into ``result`` ``[..., n]``.

    Later releases want it to exist when a layer is made, and run PyTorch's form.
    """
    gate, up = gates.chunk(2, dim=-1)
    result.copy_(F.silu(gate) * up)


@operator(
    "compute_slot_mapping_kernel_impl(Tensor query_start_loc, Tensor positions, "
    "Tensor block_table, Tensor(a3!) slot_mapping, SymInt block_size) -> ()"
)
def compute_slot_mapping(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_size: int,
) -> None:
    """Write the cache slot of every token of the batch into ``slot_mapping``.

    ``query_start_loc`` ``[requests + 1]`` holds the first token of every request,
    ``positions`` ``[≥ tokens]`` each token's position in its sequence. Entries past
    the last token are left alone.
    """
    lengths = query_start_loc.diff()
    tokens = int(query_start_loc[-1])
    request = torch.repeat_interleave(lengths, output_size=tokens)
    position = positions[:tokens]
    block = block_table[request, position // block_size].to(torch.int64)
    slot_mapping[:tokens] = block * block_size + position % block_size


@operator(
    "get_scheduler_metadata(int num_req, int num_heads_q, int num_heads_kv, "
    "int head_dim, Tensor seq_lens, ScalarType dtype, Tensor query_start_loc, "
    "bool casual, int window_size, str isa_hint, bool enable_kv_split, "
    'Tensor? dynamic_causal=None, str kv_cache_dtype="auto") -> Tensor'
)
def get_scheduler_metadata(*_: object) -> torch.Tensor:
    """The plan of the compiled attention's threads: there is none here."""
    return torch.empty(0)


@operator(
    "cpu_attn_reshape_and_cache(Tensor key, Tensor value, Tensor(a2!) key_cache, "
    "Tensor(a3!) value_cache, Tensor slot_mapping, str isa, float k_scale=1.0, "
    'float v_scale=1.0, str kv_cache_dtype="auto") -> ()'
)
def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *_: object,
) -> None:
    """Store each token's key and value in its slot; a negative slot is padding."""
    block_size = key_cache.shape[2]
    slots = slot_mapping[: key.shape[0]]
    real = slots >= 0
    block, offset = slots[real] // block_size, slots[real] % block_size
    key_cache[block, :, offset] = key[real]
    value_cache[block, :, offset] = value[real]


@operator(
    "cpu_attention_with_kv_cache(Tensor query, Tensor key_cache, Tensor value_cache, "
    "Tensor(a3!) output, Tensor query_start_loc, Tensor seq_lens, float scale, "
    "bool causal, Tensor? alibi_slopes, SymInt sliding_window_left, "
    "SymInt sliding_window_right, Tensor block_table, float softcap, "
    "Tensor scheduler_metadata, Tensor? s_aux, float k_scale=1.0, float v_scale=1.0, "
    'str kv_cache_dtype="auto") -> ()'
)
def attention_with_kv_cache(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    output: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    causal: bool,
    alibi_slopes: torch.Tensor | None,
    window_left: int,
    window_right: int,
    block_table: torch.Tensor,
    softcap: float,
    scheduler_metadata: torch.Tensor,
    sinks: torch.Tensor | None,
    *_: object,
) -> None:
    """Attention of every request's new tokens over its cached keys and values.

    ``seq_lens`` ``[requests]`` counts the cached tokens, the new ones included;
    ``window_*`` bound the distance to a key in tokens, −1 for none; ``alibi_slopes``
    and ``sinks`` are ``[heads]``; ``softcap`` 0 means none.
    """
    block_size = key_cache.shape[2]
    starts = query_start_loc.tolist()
    for request, context in enumerate(seq_lens.tolist()):
        new = slice(starts[request], starts[request + 1])
        new_tokens = new.stop - new.start
        if new_tokens == 0:
            continue
        blocks = block_table[request, : -(-context // block_size)]
        queries = query[new].transpose(0, 1)
        keys = _sequence(key_cache, blocks, context)
        values = _sequence(value_cache, blocks, context)
        visible = _visible(new_tokens, context, causal, window_left, window_right)
        if not softcap and alibi_slopes is None and sinks is None:
            result = F.scaled_dot_product_attention(
                *(queries[None], keys[None], values[None], visible),
                scale=scale,
                enable_gqa=True,
            )[0]
        else:
            scores = _scores(queries, keys, scale, softcap)
            if alibi_slopes is not None:
                distance = _distance(new_tokens, context)
                scores = scores - alibi_slopes[:, None, None] * distance
            if visible is not None:
                scores = scores.masked_fill(~visible, float("-inf"))
            result = _weigh(scores, values, sinks).to(output.dtype)
        output[new] = result.transpose(0, 1)


@operator(
    "cpu_attention_with_kv_cache.one_window(Tensor query, Tensor key_cache, "
    "Tensor value_cache, Tensor(a3!) output, Tensor query_start_loc, Tensor seq_lens, "
    "float scale, bool causal, Tensor? alibi_slopes, SymInt sliding_window_size, "
    "Tensor block_table, float softcap, Tensor scheduler_metadata, Tensor? s_aux, "
    "Tensor? dynamic_causal, float k_scale=1.0, float v_scale=1.0, "
    'str kv_cache_dtype="auto") -> ()'
)
def attention_with_one_window(*call: Any) -> None:
    """The same, as later releases call it.

    They give one window, in tokens, the query's own included, and a tensor where
    requests of a batch differ in whether they are causal.
    """
    first, causal, window = call[:9], call[7], call[9]
    if call[14] is not None:
        raise NotImplementedError(
            "reference platform: attention must be causal, or not, for all requests of "
            "a batch; serve another model"
        )
    left = window - 1 if window > 0 else -1
    attention_with_kv_cache(*first, left, -1 if causal else left, *call[10:14])


def _sequence(cache: torch.Tensor, blocks: torch.Tensor, tokens: int) -> torch.Tensor:
    """One request's ``[kv heads, tokens, head size]`` out of a paged cache."""
    heads_first = cache.index_select(0, blocks).transpose(0, 1)
    return heads_first.reshape(cache.shape[1], -1, cache.shape[3])[:, :tokens]


def _distance(new_tokens: int, context: int) -> torch.Tensor:
    """How far key j lies behind query i, ``[new_tokens, context]``, in tokens.

    The queries are the last ``new_tokens`` positions of the context.
    """
    positions = torch.arange(context)
    return positions[context - new_tokens :, None] - positions


def _visible(
    new_tokens: int, context: int, causal: bool, left: int, right: int
) -> torch.Tensor | None:
    """Which keys each query may see; None when every query sees every key."""
    if left < 0 and right < 0 and (not causal or new_tokens == 1):
        return None
    distance = _distance(new_tokens, context)
    visible = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        visible &= distance <= left
    if right >= 0:
        visible &= distance >= -right
    return visible


def _scores(
    queries: torch.Tensor, keys: torch.Tensor, scale: float, softcap: float
) -> torch.Tensor:
    """Scaled, softly capped products in float32, ``[heads, queries, keys]``."""
    keys = keys.repeat_interleave(queries.shape[0] // keys.shape[0], dim=0)
    scores = queries.float() @ keys.float().transpose(1, 2) * scale
    return softcap * torch.tanh(scores / softcap) if softcap else scores


def _weigh(
    scores: torch.Tensor, values: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """The softmax of ``scores`` over ``values``; a head's sink takes its share."""
    values = values.repeat_interleave(scores.shape[0] // values.shape[0], dim=0).float()
    if sinks is None:
        return scores.softmax(dim=-1) @ values
    sink = sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1] @ values


@operator("greedy_argmax(Tensor logits) -> Tensor")
def greedy_argmax(logits: torch.Tensor) -> torch.Tensor:
    """Choose the likeliest token of each row; from 0.33 on an operator on a CPU."""
    return logits.argmax(dim=-1).view(-1)


@operator("fused_gumbel_argmax(Tensor logits, Tensor seeds) -> Tensor")
def fused_gumbel_argmax(logits: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Draw a token of each row of ``[rows, vocabulary]`` from its softmax.

    From 0.32 on an operator on a CPU. A row's draw depends on its seed alone.
    """
    exponential = torch.empty_like(logits, dtype=torch.float64)
    generator = torch.Generator()
    for row, seed in zip(exponential, seeds.tolist(), strict=True):
        row.exponential_(generator=generator.manual_seed(seed))
    return (logits.double() - exponential.log()).argmax(dim=-1)


@operator(
    "rejection_greedy_sample_kernel_impl(Tensor(a0!) output_token_ids, "
    "Tensor cu_num_draft_tokens, Tensor draft_token_ids, Tensor target_argmax, "
    "Tensor bonus_token_ids, Tensor? is_greedy, SymInt max_spec_len) -> ()"
)
def rejection_greedy_sample(
    output_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_argmax: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    is_greedy: torch.Tensor | None,
    max_spec_len: int,
) -> None:
    """Accept each request's drafts up to the first that the model would not choose.

    ``cu_num_draft_tokens`` ``[requests]`` is the running sum of draft counts. A row of
    ``output_token_ids`` ``[requests, max_spec_len + 1]`` gets the model's own tokens,
    and ``bonus_token_ids`` ``[requests, 1]`` after them when every draft was right;
    the rest of the row keeps its placeholder.
    """
    ends: list[int] = cu_num_draft_tokens.tolist()
    for request, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if is_greedy is not None and not is_greedy[request]:
            continue
        right = draft_token_ids[start:end] == target_argmax[start:end]
        accepted = int(right.long().cumprod(0).sum())
        row = torch.cat([target_argmax[start:end], bonus_token_ids[request].view(1)])
        output_token_ids[request, : accepted + 1] = row[: accepted + 1]
