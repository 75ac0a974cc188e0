"""The operators of attention over latent keys and values, by their definition or
PyTorch's own attention; as test_operators.py does it for the others."""

import pytest
import torch
import torch_npu
import vllm_ascend.vllm_ascend_C  # noqa: F401
from npu_emulator.registry import NotEmulatedError

from test_operators import BLOCK, FLOATS, close, complex_rotation, golden_attention, npu

HEADS, LATENT, ROPE = 4, 64, 16


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def caches(blocks, dtype=torch.float32):
    """Pages of latent values, and of rotated ones."""
    return [torch.randn(blocks, BLOCK, 1, n).to(dtype) for n in (LATENT, ROPE)]


@pytest.mark.parametrize("dtype", FLOATS[:2])
def test_norm_rotation_and_cache(dtype):
    """A slot below 0 is left out; pairs of neighbours come out as halves."""
    tokens = 5
    slots = torch.tensor([3, 17, -1, 40, 0])
    both = torch.randn(tokens, 1, 1, LATENT + ROPE).to(dtype)
    weight = torch.randn(LATENT).to(dtype)
    angles = torch.rand(tokens, ROPE // 2).double()
    cos, sin = (
        torch.cat((t, t), -1)[:, None, None].to(dtype)
        for t in (angles.cos(), angles.sin())
    )
    latent, rotated = caches(3, dtype)
    x = both[:, 0, 0, :LATENT].double()
    normed = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    turned = complex_rotation(both[:, 0, :, LATENT:], angles, neox=False)[:, 0]
    turned = torch.cat((turned[:, ::2], turned[:, 1::2]), -1)
    expected = [t.clone().double().flatten(0, 2) for t in (rotated, latent)]
    for golden, part in zip(expected, (turned, normed), strict=True):
        golden[slots[slots >= 0]] = part[slots >= 0]
    found = torch_npu.npu_kv_rmsnorm_rope_cache(
        *npu(both, weight, cos, sin, slots, rotated, latent),
        epsilon=1e-6,
        cache_mode="PA",
        is_output_kv=True,
    )
    goldens = [*expected, turned, normed]
    for result, golden in zip(found, goldens, strict=True):
        close(result.flatten(0, 2), golden)


def test_decodes_over_pages():
    """One query each; a request without a context, as of padding, gets zeros."""
    lengths = [1, 16, 17, 40, 0]
    latent, rotated = caches(12)
    table = torch.randperm(12)[: 15 - 3].int().view(4, 3)
    table = torch.cat((table, torch.zeros(1, 3, dtype=torch.int32)))
    query, rope = (torch.randn(5, HEADS, 1, n) for n in (LATENT, ROPE))
    pages = [t.transpose(1, 2) for t in npu(latent, rotated)]
    out, _ = torch_npu.npu_fused_infer_attention_score_v2(
        npu(query),
        pages[0],
        pages[0],
        query_rope=npu(rope),
        key_rope=pages[1],
        num_query_heads=HEADS,
        num_key_value_heads=1,
        input_layout="BNSD_NBSD",
        softmax_scale=0.3,
        block_table=npu(table),
        block_size=BLOCK,
        actual_seq_kvlen=lengths,
    )
    assert out.shape == (HEADS, 5, 1, LATENT)
    for i, length in enumerate(lengths):
        keys, turned = (
            t[table[i].long()].flatten(0, 1)[:length] for t in (latent, rotated)
        )
        asked = torch.cat((query[i], rope[i]), -1).transpose(0, 1)
        golden = torch.zeros(1, HEADS, LATENT)
        if length:
            # PyTorch divides by the root of the size of a head.
            scaled = asked * 0.3 * (LATENT + ROPE) ** 0.5
            golden = golden_attention(
                scaled, torch.cat((keys, turned), -1), keys, False
            )
        close(out[:, i, 0], golden[0])


@pytest.mark.parametrize("causal", [True, False])
def test_prompts_in_two_parts(causal):
    """Queries and keys of which a part is rotated."""
    lengths, ends = [3, 17], [3, 20]
    q, k, v = (torch.randn(20, HEADS, 32) for _ in range(3))
    q_rope, k_rope = torch.randn(2, 20, HEADS, ROPE)
    out, sums = torch_npu.npu_fused_infer_attention_score(
        *npu(q, k, v),
        query_rope=npu(q_rope),
        key_rope=npu(k_rope),
        num_heads=HEADS,
        num_key_value_heads=HEADS,
        input_layout="TND",
        scale=48**-0.5,
        sparse_mode=3 if causal else 0,
        softmax_lse_flag=True,
        actual_seq_lengths=ends,
        actual_seq_lengths_kv=ends,
    )
    assert out.shape == v.shape
    for end, length in zip(ends, lengths, strict=True):
        part = slice(end - length, end)
        query, key = (
            torch.cat(t, -1) for t in ((q[part], q_rope[part]), (k[part], k_rope[part]))
        )
        close(out[part], golden_attention(query, key, v[part], causal))
        if not causal:
            scores = torch.einsum("thd,shd->ths", query.double(), key.double())
            close(sums[part, :, 0], (scores * 48**-0.5).logsumexp(-1))


def test_parts_of_attention_are_put_together():
    """A part without keys has an infinite sum, and counts nothing."""
    scores, values = torch.randn(6, 9).double(), torch.randn(6, 9, 8).double()
    parts = [slice(0, 4), slice(4, 9)]
    sums = [scores[:, part].logsumexp(-1).float() for part in parts]
    outs = [
        torch.einsum("rk,rkd->rd", scores[:, p].softmax(-1), values[:, p]).float()
        for p in parts
    ]
    sums.append(torch.full((6,), float("inf")))
    outs.append(torch.zeros(6, 8))
    found, _ = torch_npu.npu_attention_update(npu(*sums), npu(*outs), 0)
    close(found, torch.einsum("rk,rkd->rd", scores.softmax(-1), values))


def test_tokens_are_loaded_from_their_pages():
    latent, rotated = caches(8)
    table = torch.tensor([[5, 2, 7], [0, 3, 1]], dtype=torch.int32)
    starts, lengths = torch.tensor([16, 0]), torch.tensor([20, 5], dtype=torch.int32)
    outs = [torch.zeros(25, 1, n, device="npu") for n in (LATENT, ROPE)]
    torch_npu.atb.npu_paged_cache_load(
        *npu(latent, rotated, table, lengths),
        seq_starts=npu(starts),
        key=outs[0],
        value=outs[1],
    )
    for found, cache in zip(outs, (latent, rotated), strict=True):
        rows = [cache[table[i].long()].flatten(0, 1) for i in range(2)]
        close(found, torch.cat((rows[0][16:36], rows[1][:5])))


def test_product_of_a_batch():
    x, weight = torch.randn(3, 5, 8), torch.randn(3, 8, 7)
    found = torch_npu.npu_transpose_batchmatmul(*npu(x, weight), perm_y=(1, 0, 2))
    close(found, torch.einsum("nbi,nio->bno", x, weight))


def test_an_unknown_layout_refuses_by_name():
    x = npu(torch.randn(2, 1, HEADS, LATENT))
    with pytest.raises(NotEmulatedError, match="input_layout=BSND_NBSD"):
        torch_npu.npu_fused_infer_attention_score_v2(
            x, x, x, num_query_heads=HEADS, input_layout="BSND_NBSD"
        )
