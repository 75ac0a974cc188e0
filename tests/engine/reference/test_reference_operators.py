"""Each operator of the reference platform agrees with a plain statement of its rule."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_balance.reference import operators  # noqa: F401 (registers them)

BLOCK = 4
Lengths = list[tuple[int, int]]
"""(new tokens, tokens cached before them) of every request."""

requests = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 11)), min_size=1, max_size=4
).filter(lambda lengths: any(new for new, _ in lengths))
NONE = torch.empty(0)
"""In the place of the compiled attention's plan."""


class Batch:
    """Random queries, keys and values of some requests, and where they are cached."""

    def __init__(self, lengths, heads, kv_heads, seed):
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=draw)

        self.new = [new for new, _ in lengths]
        self.context = [new + before for new, before in lengths]
        self.query = normal(sum(self.new), heads, 8)
        self.keys = [normal(n, kv_heads, 8) for n in self.context]
        self.values = [normal(n, kv_heads, 8) for n in self.context]
        width = max(-(-n // BLOCK) for n in self.context)
        blocks = torch.randperm(len(lengths) * width + 1, generator=draw)
        self.block_table = blocks[:-1].view(len(lengths), width).to(torch.int32)
        starts = torch.tensor([0, *self.new]).cumsum(0)
        self.starts = starts.to(torch.int32)
        # What no request owns is NaN: to read it is an error that shows.
        shape = (len(blocks), kv_heads, BLOCK, 8)
        self.key_cache = torch.full(shape, math.nan)
        self.value_cache = torch.full(shape, math.nan)
        for request, length in enumerate(self.context):
            for position in range(length):
                block = self.block_table[request, position // BLOCK]
                offset = position % BLOCK
                self.key_cache[block, :, offset] = self.keys[request][position]
                self.value_cache[block, :, offset] = self.values[request][position]

    def attend(self, causal, *arguments):
        """The operator's output, called by name as the engine does."""
        output = torch.full_like(self.query, math.nan)
        tensors = (self.query, self.key_cache, self.value_cache, output, self.starts)
        context = torch.tensor(self.context, dtype=torch.int32)
        attend = torch.ops._C.cpu_attention_with_kv_cache
        attend(*tensors, context, 0.3, causal, *arguments)
        return output

    def expected(self, causal, window, alibi=None, softcap=0.0, sinks=None):
        """The same, with a score for every query and key."""
        rows = []
        for request, new in enumerate(self.new):
            start, context = int(self.starts[request]), self.context[request]
            query = self.query[start : start + new]
            group = query.shape[1] // self.keys[request].shape[1]
            keys = self.keys[request].repeat_interleave(group, 1)
            values = self.values[request].repeat_interleave(group, 1)
            positions = torch.arange(context)
            behind = positions[context - new :, None] - positions
            unseen = torch.zeros_like(behind, dtype=torch.bool)
            if causal:
                unseen |= behind < 0
            if window[0] >= 0:
                unseen |= behind > window[0]
            if window[1] >= 0:
                unseen |= -behind > window[1]
            scores = 0.3 * torch.einsum("qhd,khd->hqk", query, keys)
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            if alibi is not None:
                scores = scores - alibi[:, None, None] * behind
            weights = scores.exp().masked_fill(unseen, 0)
            total = weights.sum(-1, keepdim=True)
            if sinks is not None:
                total = total + sinks.exp()[:, None, None]
            rows.append(torch.einsum("hqk,khd->qhd", weights / total, values))
        return torch.cat(rows)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("tokens", "left"), [(-1, -1), (1, 0), (4, 3)])
def test_attention_with_one_window(causal, tokens, left):
    """As later releases call it."""
    batch = Batch([(5, 7), (1, 3)], heads=2, kv_heads=1, seed=0)
    window = (left, 0 if causal and left >= 0 else left)
    found = batch.attend(causal, None, tokens, batch.block_table, 0.0, NONE, None, None)
    torch.testing.assert_close(found, batch.expected(causal, window))


@settings(max_examples=80)
@given(
    lengths=requests,
    group=st.sampled_from([1, 2, 3]),
    kv_heads=st.sampled_from([1, 2]),
    causal=st.booleans(),
    window=st.sampled_from([(-1, -1), (3, 0), (2, 2)]),
    softcap=st.sampled_from([0.0, 1.5]),
    alibi=st.booleans(),
    sinks=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_attention_over_the_cache(
    lengths, group, kv_heads, causal, window, softcap, alibi, sinks, seed
):
    heads = group * kv_heads
    batch = Batch(lengths, heads, kv_heads, seed)
    slopes = torch.tensor([0.5, 0.25, 0.1, 0.05, 0.3, 0.2])[:heads] if alibi else None
    sink = torch.tensor([0.3, -0.2, 0.0, 1.0, 0.1, -1.0])[:heads] if sinks else None
    table = batch.block_table
    found = batch.attend(causal, slopes, *window, table, softcap, NONE, sink)
    expected = batch.expected(causal, window, slopes, softcap, sink)
    torch.testing.assert_close(found, expected)


def test_draws_follow_the_softmax_and_repeat_with_their_seeds():
    odds = torch.tensor([0.6, 0.3, 0.0, 0.1])
    logits = odds.log().expand(20_000, -1)
    seeds = torch.arange(20_000) - 10_000
    drawn = torch.ops._C.fused_gumbel_argmax(logits, seeds)
    shares = drawn.bincount(minlength=4) / len(drawn)
    assert shares[2] == 0
    torch.testing.assert_close(shares, odds, atol=0.02, rtol=0)  # six deviations
    backwards = torch.ops._C.fused_gumbel_argmax(logits, seeds.flip(0))
    assert torch.equal(drawn.flip(0), backwards)
