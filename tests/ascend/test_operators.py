"""Every emulated operator against a function that was written by somebody else, or by
definition: called as the plugin calls it, through torch_npu and the dispatcher."""

import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import torch_npu
import vllm_ascend.vllm_ascend_C  # noqa: F401
from npu_emulator.registry import EMULATED
from torch._C import _get_schema

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def close(found, expected, dtype=None):
    tolerance = TOLERANCE[dtype or found.dtype]
    torch.testing.assert_close(
        found.cpu().double(), expected.double(), rtol=tolerance, atol=tolerance
    )


def npu(*tensors):
    moved = [None if t is None else t.to("npu") for t in tensors]
    return moved[0] if len(moved) == 1 else moved


@pytest.mark.parametrize("name", sorted(EMULATED))
def test_takes_the_arguments_of_its_schema(name):
    """By the names and in the order in which torch_npu declares them."""
    operator, _, overload = name.partition(".")
    schema = _get_schema(operator, overload)
    function = EMULATED[name].__code__
    takes_rest = bool(function.co_flags & 0x0C)  # *args or **kwargs
    known = function.co_varnames[: function.co_argcount + function.co_kwonlyargcount]
    positional = [a.name for a in schema.arguments if not a.kwarg_only]
    ours = known[: function.co_argcount]
    assert list(ours) == positional[: len(ours)], schema
    names = {a.name for a in schema.arguments}
    assert set(known) <= names, schema
    if not takes_rest:
        assert names == set(known), schema


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_norms(dtype, tokens):
    x, y, weight, bias = (torch.randn(tokens, 64).to(dtype) for _ in range(4))
    weight, bias = torch.randn(64).to(dtype), torch.randn(64).to(dtype)

    def golden(t):
        return F.rms_norm(t.double(), (64,), weight.double(), 1e-6)

    close(torch_npu.npu_rms_norm(*npu(x, weight), 1e-6)[0], golden(x))
    out, _, total = torch_npu.npu_add_rms_norm(*npu(x, y, weight), 1e-6)
    close(out, golden(x + y))
    assert torch.equal(total.cpu(), x + y)
    out, _, _ = torch.ops._C_ascend.npu_add_rms_norm_bias(
        *npu(x, y, weight, bias), 1e-6
    )
    close(out, golden(x + y) + bias.double())


@pytest.mark.parametrize("dtype", FLOATS)
def test_swiglu(dtype):
    x = torch.randn(7, 32).to(dtype)
    expected = F.silu(x.double()[:, :16]) * x.double()[:, 16:]
    close(torch_npu.npu_swiglu(npu(x)), expected)


def complex_rotation(x, angles, neox):
    """Rotation as the product of complex numbers."""
    half = angles.shape[-1]
    turned = torch.polar(torch.ones_like(angles), angles)[:, None]
    rest = x[..., 2 * half :].double()
    x = x[..., : 2 * half].double()
    if neox:
        pairs = torch.complex(x[..., :half], x[..., half:]) * turned
        return torch.cat((pairs.real, pairs.imag, rest), -1)
    pairs = torch.view_as_complex(x.unflatten(-1, (half, 2)).contiguous()) * turned
    return torch.cat((torch.view_as_real(pairs).flatten(-2), rest), -1)


@pytest.mark.parametrize(
    ("neox", "rotated", "dtype"),
    list(itertools.product([True, False], [16, 32], FLOATS[:2])),
)
def test_rotary_embedding(neox, rotated, dtype):
    positions = torch.tensor([0, 3, 9, 4])
    frequencies = torch.rand(rotated // 2).double()
    angles = torch.arange(10)[:, None] * frequencies
    table = torch.cat((angles.cos(), angles.sin()), -1).to(dtype)
    query, key = torch.randn(4, 3 * 32).to(dtype), torch.randn(4, 32).to(dtype)
    expected = [
        complex_rotation(t.view(4, -1, 32), angles[positions], neox).flatten(1)
        for t in (query, key)
    ]
    query, key = npu(query, key)
    torch_npu._npu_rotary_embedding(npu(positions), query, key, 32, npu(table), neox)
    for found, golden in zip((query, key), expected, strict=True):
        close(found, golden, torch.bfloat16 if dtype != torch.float32 else dtype)


def test_rotations_with_given_cosines():
    angles = torch.arange(6)[:, None] * torch.rand(8).double()
    cos, sin = (
        torch.cat((t, t), -1).float()[:, None] for t in (angles.cos(), angles.sin())
    )
    x = torch.randn(6, 4, 16)
    expected = complex_rotation(x, angles, neox=True)
    close(torch_npu.npu_rotary_mul(*npu(x, cos, sin)), expected)
    pairs = [
        torch.repeat_interleave(t, 2, -1).float()[:, None]
        for t in (angles.cos(), angles.sin())
    ]
    found = torch_npu.npu_rotary_mul(*npu(x, *pairs), rotary_mode="interleave")
    close(found, complex_rotation(x, angles, neox=False))


BLOCK = 16


def cache_of(lengths, groups, size, dtype):
    """Keys and values of requests, and a cache with pages in random order."""
    blocks = [-(-n // BLOCK) for n in lengths]
    order = torch.randperm(sum(blocks) + 3).tolist()
    table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    cache = torch.randn(2, sum(blocks) + 3, BLOCK, groups, size).to(dtype)
    rows = []
    for i, n in enumerate(lengths):
        keys, values = torch.randn(2, n, groups, size).to(dtype)
        for j in range(blocks[i]):
            table[i, j] = order.pop()
            part = slice(j * BLOCK, min((j + 1) * BLOCK, n))
            width = part.stop - part.start
            cache[0, table[i, j], :width] = keys[part]
            cache[1, table[i, j], :width] = values[part]
        rows.append((keys, values))
    return rows, cache, table


def golden_attention(query, key, value, causal):
    """PyTorch's own; the last query sees the last key."""
    q, k, v = (t.double().transpose(0, 1) for t in (query, key, value))
    mask = None
    if causal:
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
        mask = mask.tril(k.shape[1] - q.shape[1])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(0, 1)


@pytest.mark.parametrize("dtype", FLOATS[:2])
@pytest.mark.parametrize("paged", [True, False])
def test_fused_infer_attention(dtype, paged):
    heads, groups, size = 4, 2, 32
    lengths = [1, 16, 17, 40]
    queries = [1, 3, 17, 5] if paged else lengths
    rows, cache, table = cache_of(lengths, groups, size, dtype)
    query = torch.randn(sum(queries), heads, size).to(dtype)
    ends = list(itertools.accumulate(queries))
    keywords = {}
    if paged:
        key, value = (t.flatten(2) for t in cache)
        keywords = {"block_table": npu(table), "block_size": BLOCK}
        known = lengths
    else:
        key, value = (torch.cat([row[i] for row in rows]) for i in (0, 1))
        known = list(itertools.accumulate(lengths))
    out, _ = torch_npu.npu_fused_infer_attention_score(
        *npu(query, key, value),
        atten_mask=torch.ones(2048, 2048, dtype=torch.int8, device="npu").triu(1),
        input_layout="TND",
        actual_seq_lengths=ends,
        actual_seq_lengths_kv=known,
        num_heads=heads,
        num_key_value_heads=groups,
        scale=size**-0.5,
        sparse_mode=3,
        **keywords,
    )
    parts = query.split(queries)
    golden = [
        golden_attention(q, *row, True) for q, row in zip(parts, rows, strict=True)
    ]
    close(out, torch.cat(golden))


def test_paged_attention():
    lengths = [1, 15, 33]
    rows, cache, table = cache_of(lengths, 2, 32, torch.float32)
    query = torch.randn(3, 4, 32)
    out = torch.empty(3, 4, 32, device="npu")
    torch_npu._npu_paged_attention(
        query=npu(query),
        key_cache=npu(cache[0]),
        value_cache=npu(cache[1]),
        num_kv_heads=2,
        num_heads=4,
        scale_value=32**-0.5,
        block_table=npu(table),
        context_lens=torch.tensor(lengths, dtype=torch.int32),
        out=out,
    )
    golden = [
        golden_attention(query[i : i + 1], *row, False) for i, row in enumerate(rows)
    ]
    close(out, torch.cat(golden))


@pytest.mark.parametrize("name", ["_npu_reshape_and_cache", "npu_scatter_pa_kv_cache"])
def test_writing_the_cache(name):
    caches = torch.zeros(2, 3, BLOCK, 2, 8)
    tokens = torch.randn(2, 6, 2, 8)
    slots = torch.tensor([0, 15, -1, 16, 40], dtype=torch.int32)
    key_cache, value_cache = npu(*caches)
    if name.startswith("_"):
        torch_npu._npu_reshape_and_cache(
            *npu(tokens[0], tokens[1]), key_cache, value_cache, npu(slots)
        )
    else:
        torch_npu.npu_scatter_pa_kv_cache(
            *npu(tokens[0], tokens[1]), key_cache, value_cache, npu(slots)
        )
    for i, slot in enumerate(slots.tolist()):
        if slot >= 0:
            caches[:, slot // BLOCK, slot % BLOCK] = tokens[:, i]
    assert torch.equal(key_cache.cpu(), caches[0])
    assert torch.equal(value_cache.cpu(), caches[1])


@pytest.mark.parametrize("renormalise", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS[:2])
def test_gating_by_softmax(renormalise, dtype):
    """As the router of Qwen3 in transformers."""
    logits = torch.randn(9, 16).to(dtype)
    expected, ids = logits.float().softmax(-1).topk(4, -1)
    if renormalise:
        expected = expected / expected.sum(-1, keepdim=True)
    weights, found, _ = torch.ops._C_ascend.moe_gating_top_k(
        npu(logits),
        k=4,
        k_group=1,
        group_count=1,
        group_select_mode=1,
        renorm=renormalise,
        norm_type=0,
        out_flag=False,
        routed_scaling_factor=1.0,
        eps=1e-20,
        bias_opt=None,
    )
    assert torch.equal(found.cpu().long(), ids)
    close(weights, expected, dtype)


def test_gating_by_groups():
    """As the router of DeepSeek-V3 in transformers: sigmoid, bias, groups."""
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

    config = DeepseekV3Config(
        hidden_size=8,
        n_routed_experts=16,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
    )
    moe = deepseek.DeepseekV3MoE(config)
    bias, logits = torch.rand(16), torch.randn(11, 16)
    moe.gate.e_score_correction_bias.copy_(bias)
    ids, expected = moe.route_tokens_to_experts(logits)
    weights, found, _ = torch.ops._C_ascend.moe_gating_top_k(
        npu(logits), 4, 2, 4, 1, 0, 1, False, 2.5, 1e-20, npu(bias)
    )
    order, golden_order = found.cpu().argsort(-1), ids.argsort(-1)
    assert torch.equal(
        found.cpu().long().gather(-1, order), ids.gather(-1, golden_order)
    )
    close(weights.cpu().gather(-1, order), expected.gather(-1, golden_order))


@pytest.mark.parametrize("span", [(0, 8), (2, 5), (7, 8)])
@pytest.mark.parametrize("dtype", FLOATS[:2])
def test_routed_experts(span, dtype):
    """Order, products and weighted sums of a layer, against a loop over the tokens."""
    low, high = span
    x, weights = torch.randn(6, 16).to(dtype), torch.rand(6, 2)
    ids = torch.stack([torch.randperm(8)[:2] for _ in range(6)]).int()
    matrices = torch.randn(high - low, 16, 12).to(dtype)
    copies, rows, counts, _ = torch.ops._C_ascend.npu_moe_init_routing_custom(
        *npu(x, ids),
        active_num=12,
        expert_num=8,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=[low, high],
        quant_mode=-1,
    )
    assert counts.cpu().tolist() == [int((ids == e).sum()) for e in range(low, high)]
    (out,) = torch_npu.npu_grouped_matmul(
        x=[copies],
        weight=[npu(matrices)],
        split_item=2,
        group_list_type=1,
        group_type=0,
        group_list=counts,
    )
    kept = npu(weights * ((ids >= low) & (ids < high)))
    found = torch_npu.npu_moe_token_unpermute(
        permuted_tokens=out, sorted_indices=rows.abs(), probs=kept
    )
    expected = torch.zeros(6, 12, dtype=torch.float64)
    for token, choice in itertools.product(range(6), range(2)):
        expert = int(ids[token, choice])
        if low <= expert < high:
            product = x[token].double() @ matrices[expert - low].double()
            expected[token] += weights[token, choice].double() * product
    close(found, expected, dtype if dtype == torch.float32 else torch.bfloat16)


def test_permuting_tokens():
    x = torch.randn(5, 4)
    ids = torch.tensor([[2, 0], [1, 2], [0, 1], [2, 1], [0, 2]], dtype=torch.int32)
    copies, rows = torch_npu.npu_moe_token_permute(*npu(x, ids))
    expected = [
        x[t] for e in range(3) for t in range(5) for c in range(2) if ids[t, c] == e
    ]
    assert torch.equal(copies.cpu(), torch.stack(expected))
    found = torch_npu.npu_moe_token_unpermute(
        copies, rows, npu(torch.full((5, 2), 0.5))
    )
    close(found, x)


def test_grouped_matmul_takes_running_sums():
    x, weights = torch.randn(6, 4), torch.randn(3, 4, 5)
    (out,) = torch_npu.npu_grouped_matmul(
        [npu(x)],
        [npu(weights)],
        group_list=torch.tensor([2, 2, 5], device="npu"),
        split_item=3,
        group_list_type=0,
        group_type=0,
    )
    golden = torch.cat((x[:2] @ weights[0], x[2:5] @ weights[2], torch.zeros(1, 5)))
    close(out, golden)


def test_top_k_and_top_p():
    """Against vLLM's own."""
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    logits = torch.randn(5, 40)
    k, p = torch.tensor([1, 3, 40, 7, 12]), torch.tensor([0.9, 0.5, 0.99, 1.0, 0.05])
    for keywords in ({"k": k, "p": None}, {"k": None, "p": p}, {"k": k, "p": p}):
        expected = apply_top_k_top_p_pytorch(logits.clone(), **keywords)
        k_, p_ = npu(keywords["k"], keywords["p"])
        found = torch_npu.npu_top_k_top_p(
            npu(logits), p_, None if k_ is None else k_.int()
        )
        assert torch.equal(found.cpu(), expected), keywords


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_histogram(dtype):
    """As `bincount` has it; PyTorch's kernel for the CPU refuses integers."""
    experts = torch.randint(0, 8, (40,))
    found = torch.histc(npu(experts.to(dtype)), bins=8, min=0, max=8)
    assert found.dtype == dtype
    assert found.tolist() == experts.bincount(minlength=8).tolist()


def test_a_part_of_the_vocabulary():
    """Against vLLM's own."""
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        get_masked_input_and_mask,
    )

    ids = torch.tensor([0, 9, 10, 19, 20, 35, 40, 41, 44, 60])
    bounds = (10, 20, 2, 40, 43)
    expected, mask = get_masked_input_and_mask(ids, *bounds)
    found, found_mask = torch.ops._C_ascend.get_masked_input_and_mask(npu(ids), *bounds)
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(found_mask.cpu(), mask)


def test_the_format_is_the_plain_one():
    x = torch.randn(4, 4, device="npu")
    assert torch.equal(torch_npu.npu_format_cast(x, 29).cpu(), x.cpu())
    assert torch_npu.get_npu_format(x) == 2


def test_an_update_in_float32():
    x, weight, total = torch.randn(6, 4), torch.randn(6, 5), torch.randn(4, 5)
    found = npu(total)
    torch.ops.atb._npu_matmul_add_fp32(*npu(x, weight), found)
    close(found, total.double() + x.double().t() @ weight.double())


def test_an_unknown_operator_refuses_by_name():
    with pytest.raises(NotImplementedError, match="npu::npu_mish is not emulated"):
        torch_npu.npu_mish(torch.randn(3, device="npu"))


def test_an_unknown_argument_refuses_by_name():
    x = torch.randn(4, 2, 8, device="npu")
    with pytest.raises(NotImplementedError, match="input_layout=BSH"):
        torch_npu.npu_fused_infer_attention_score(x, x, x, num_heads=2)
