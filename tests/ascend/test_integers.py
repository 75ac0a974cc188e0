"""Emulated operators on integers, against float64 in plain torch."""

import pytest
import torch
import torch_npu
import vllm_ascend.vllm_ascend_C  # noqa: F401
from torch.testing import assert_close

from test_operators import npu

GROUPS = ([3, 0, 4, 1], [0, 0, 0, 8], [0, 5, 0, 0], [0, 0, 0, 0])
ROWS, INNER, COLUMNS = 8, 6, 16
OPERATORS = torch.ops._C_ascend


def rounded(x):
    """Of each row the integers and their unit, which is 1 for a row of zeros."""
    unit = x.double().abs().amax(-1, keepdim=True) / 127
    return torch.round(x.double() / unit.masked_fill(unit == 0, 1)), unit


def swiglu(x):
    gate, up = x.double().chunk(2, -1)
    return gate / (1 + torch.exp(-gate)) * up


def integers(*shape):
    return torch.randint(-127, 128, shape, dtype=torch.int8)


@pytest.fixture
def experts():
    """Tokens, their units, a weight of each of four experts, and its units."""
    torch.manual_seed(3)
    weights, units = integers(4, INNER, COLUMNS), torch.rand(4, COLUMNS) / 90
    return integers(ROWS, INNER), torch.rand(ROWS) / 90, weights, units


def by_row(experts, groups):
    """The exact products of the rows of each group with its weight, scaled and bare."""
    x, unit, weights, units = (t.double() for t in experts)
    bare = torch.zeros(ROWS, COLUMNS, dtype=torch.float64)
    made = bare.clone()
    expert_of_row = [e for e, count in enumerate(groups) for _ in range(count)]
    for row, e in enumerate(expert_of_row):
        for column in range(COLUMNS):
            bare[row, column] = (x[row] * weights[e, :, column]).sum()
        made[row] = bare[row] * units[e] * unit[row]
    return made, bare


def assert_quantised(found, unit, expected):
    """Equal but for a rounding that goes the other way, which is one."""
    whole, units = rounded(expected)
    assert found.dtype == torch.int8
    assert_close(unit.cpu().double(), units.squeeze(-1), rtol=1e-5, atol=1e-9)
    apart = (found.cpu().double() - whole).abs().flatten()
    assert apart.le(1).all()
    assert apart.sum() <= 0.05 * apart.numel()


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 2, 33), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantising(shape, dtype):
    torch.manual_seed(3)
    x = torch.randn(shape).to(dtype)
    x[:1] = 0
    assert_quantised(*torch_npu.npu_dynamic_quant(*npu(x)), x)


@pytest.mark.parametrize("bias", [None, torch.arange(5.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matmul(dtype, bias):
    x, weight = integers(3, 9), integers(9, 5)
    scale, unit = torch.rand(5), torch.rand(3)
    golden = x.double() @ weight.double()
    bare = torch_npu.npu_quant_matmul(*npu(x, weight, scale), output_dtype=torch.int32)
    assert bare.tolist() == golden.int().tolist()
    found = torch_npu.npu_quant_matmul(
        *npu(x, weight, scale),
        pertoken_scale=unit.to("npu"),
        bias=None if bias is None else bias.to("npu"),
        output_dtype=dtype,
    )
    golden = golden * scale.double() * unit.double()[:, None]
    golden = golden if bias is None else golden + bias
    assert_close(
        found.cpu(),
        golden.to(dtype),
        rtol=1e-2 if dtype.itemsize == 2 else 1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("groups", GROUPS)
def test_grouped_matmul(groups, sums, experts):
    made, bare = by_row(experts, groups)
    x, unit, weights, units = npu(*experts)
    numbers = torch.tensor(groups, device="npu")
    common = {"split_item": 2, "group_type": 0, "group_list_type": int(not sums)}
    common["group_list"] = numbers.cumsum(0) if sums else numbers
    (found,) = torch_npu.npu_grouped_matmul(
        *([x], [weights]), output_dtype=torch.int32, **common
    )
    assert found.tolist() == bare.int().tolist()
    (found,) = torch_npu.npu_grouped_matmul(
        *([x], [weights]),
        scale=[units],
        per_token_scale=[unit],
        output_dtype=torch.float32,
        **common,
    )
    assert_close(found.cpu(), made.float())


@pytest.mark.parametrize("groups", GROUPS)
def test_first_half_of_experts(groups, experts):
    """In one operator, and in two."""
    made, bare = by_row(experts, groups)
    x, unit, weights, units = npu(*experts)
    numbers = torch.tensor(groups, device="npu")
    found, scale, _ = OPERATORS.grouped_matmul_swiglu_quant_weight_nz(
        x, weights, units, unit, numbers.cumsum(0)
    )
    assert_quantised(found, scale, swiglu(made))
    found, scale = OPERATORS.npu_dequant_swiglu_quant(
        bare.int().to("npu"),
        weight_scale=units,
        activation_scale=unit,
        group_index=numbers,
        quant_mode=1,
    )
    assert_quantised(found, scale, swiglu(made))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("groups", GROUPS)
def test_four_bits(groups, parts, experts):
    """With a scale for each column, or each column of a half of the rows."""
    x, unit, _, _ = experts
    whole = torch.randint(-8, 8, (4, INNER, COLUMNS), dtype=torch.int8)
    units = torch.rand(4, parts, COLUMNS) / 90
    numbers = whole * units.repeat_interleave(INNER // parts, 1).double()
    made, _ = by_row((x, unit, numbers, torch.ones(4, COLUMNS)), groups)
    packed = (whole[..., ::2] & 15 | whole[..., 1::2] << 4).view(torch.int32)
    bits, bias = units.view(torch.int32).long(), 8 * numbers.sum(1).float()
    x, unit, packed, bits, bias = npu(x, unit, packed, bits, bias)
    common = {"group_list": torch.tensor(groups, device="npu"), "group_list_type": 1}
    (found,) = torch_npu.npu_grouped_matmul(
        *([x], [packed]),
        scale=[bits],
        bias=[bias],
        per_token_scale=[unit],
        output_dtype=torch.bfloat16,
        group_type=0,
        split_item=2,
        **common,
    )
    assert_close(found.cpu(), made.bfloat16(), rtol=1e-2, atol=1e-6)
    found, scale = OPERATORS.grouped_matmul_swiglu_quant_v2(
        *(x, [packed], [bits.squeeze(1)], unit),
        weight_assist_matrix=[bias],
        **common,
    )
    assert_quantised(found, scale, swiglu(made))


def test_first_half_of_a_shared_expert(experts):
    made, bare = by_row(experts, [ROWS])
    _, unit, _, units = npu(*experts)
    found, scale = OPERATORS.npu_dequant_swiglu_quant(
        bare.int().to("npu"), weight_scale=units[0], activation_scale=unit, quant_mode=1
    )
    assert_quantised(found, scale, swiglu(made))


@pytest.mark.parametrize("quant_mode", [-1, 1])
def test_routing(quant_mode):
    """Copies keep their scales; those of other ranks' experts are none of ours."""
    x, ids = torch.randn(3, 5), torch.tensor([[0, 2], [3, 1], [2, 1]])
    whole, unit = rounded(x)
    given = (whole.char(), unit[:, 0].float()) if quant_mode == -1 else (x, None)
    copies, rows, tokens, scales = OPERATORS.npu_moe_init_routing_custom(
        *npu(given[0], ids.int()),
        scale=None if given[1] is None else given[1].to("npu"),
        expert_num=4,
        expert_tokens_num_type=1,
        quant_mode=quant_mode,
        active_expert_range=[1, 3],
    )
    order = [1, 2, 0, 2]  # tokens of expert 1, then of expert 2
    assert torch.equal(copies[:4].cpu(), whole[order].char())
    assert_close(scales[:4].cpu(), unit[order, 0].float())
    assert (tokens.tolist(), rows.tolist()) == ([2, 2], [-1, 2, -1, 0, 3, 1])
