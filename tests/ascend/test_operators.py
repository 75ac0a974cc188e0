"""Emulated operators: their schemas, and what refuses. That they are right, the answers
of the models show: those of Hugging Face.
"""

import pytest
import torch
import torch_npu
import vllm_ascend.vllm_ascend_C  # noqa: F401
from npu_emulator.registry import EMULATED
from torch._C import _get_schema


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


def test_an_unknown_operator_refuses_by_name():
    with pytest.raises(NotImplementedError, match="npu::npu_mish is not emulated"):
        torch_npu.npu_mish(torch.randn(3, device="npu"))


def test_an_unknown_argument_refuses_by_name():
    x = torch.randn(4, 2, 8, device="npu")
    with pytest.raises(NotImplementedError, match="input_layout=BSH"):
        torch_npu.npu_fused_infer_attention_score(x, x, x, num_heads=2)
