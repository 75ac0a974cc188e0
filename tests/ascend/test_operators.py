"""Emulated operators: their schemas, what refuses, and those that no test of a model
needs. That the others are right, the answers of the models show: those of Hugging Face.
"""

import pytest
import torch
import torch_npu
import triton
import triton.language as tl
import vllm_ascend.vllm_ascend_C  # noqa: F401
from npu_emulator.registry import EMULATED
from torch._C import _get_schema
from torch.testing import assert_close


def npu(*tensors):
    return [tensor.to("npu") for tensor in tensors]


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


def test_permuting_tokens():
    x = torch.randn(5, 4)
    ids = torch.tensor([[2, 0], [1, 2], [0, 1], [2, 1], [0, 2]], dtype=torch.int32)
    copies, rows = torch_npu.npu_moe_token_permute(*npu(x, ids))
    expected = [
        x[t] for e in range(3) for t in range(5) for c in range(2) if ids[t, c] == e
    ]
    assert torch.equal(copies.cpu(), torch.stack(expected))
    halves = torch.full((5, 2), 0.5, device="npu")
    found = torch_npu.npu_moe_token_unpermute(copies, rows, halves)
    assert_close(found.cpu(), x)


def test_queries_that_see_no_key_get_zeros():
    """As those with which flashcomm1 makes ranks equal: of three, the last sees one."""
    q, k, v = torch.randn(3, 2, 8), torch.randn(1, 128, 8), torch.randn(1, 128, 8)
    out, _ = torch_npu.npu_fused_infer_attention_score(
        *npu(q, k, v),
        num_heads=2,
        num_key_value_heads=1,
        input_layout="TND",
        sparse_mode=3,
        block_size=128,
        block_table=torch.zeros(1, 1, dtype=torch.int32, device="npu"),
        actual_seq_lengths=[3],
        actual_seq_lengths_kv=[1],
    )
    assert torch.equal(out.cpu()[:2], torch.zeros(2, 2, 8))
    assert_close(out.cpu()[2], v[0, :1].expand(2, 8))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_histogram(dtype):
    """As `bincount` has it; PyTorch's kernel for the CPU refuses integers."""
    experts = torch.randint(0, 8, (40,))
    found = torch.histc(experts.to("npu", dtype), bins=8, min=0, max=8)
    assert found.dtype == dtype
    assert found.tolist() == experts.bincount(minlength=8).tolist()


def test_scattering_leaves_padding_out():
    x, rows = torch.zeros(4, 2, device="npu"), torch.tensor([[2], [-1], [0]])
    torch_npu.npu_scatter_nd_update_(x, *npu(rows, torch.ones(3, 2)))
    assert x.tolist() == [[1, 1], [0, 0], [1, 1], [0, 0]]


@triton.jit
def _write_where_not_negative(x, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(x + at, 7, tl.load(x + at) >= 0)
    tl.store(x + block, 7, tl.load(x + block) >= 0)
    tl.atomic_add(x + block + 1, 7, mask=tl.load(x + block + 1) >= 0)


@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_mask_of_one_element_forbids(block, sign):
    """triton's interpreter took it for no mask: every draft was accepted."""
    x = torch.full((block + 2,), sign, dtype=torch.int32, device="npu")
    _write_where_not_negative[(1,)](x, block=block)
    assert x.tolist() == ([7] * (block + 1) + [8] if sign > 0 else [-1] * (block + 2))


def test_the_format_is_the_plain_one():
    x = torch.randn(4, 4, device="npu")
    assert torch.equal(torch_npu.npu_format_cast(x, 29).cpu(), x.cpu())
    assert torch_npu.get_npu_format(x) == 2


def test_an_unknown_operator_refuses_by_name():
    with pytest.raises(NotImplementedError, match="npu::npu_mish is not emulated"):
        torch_npu.npu_mish(torch.randn(3, device="npu"))


def test_an_unknown_argument_refuses_by_name():
    x = torch.randn(4, 2, 8, device="npu")
    with pytest.raises(NotImplementedError, match="input_layout=BSH"):
        torch_npu.npu_fused_infer_attention_score(x, x, x, num_heads=2)
