"""The offline engine writes what Hugging Face writes, on the emulated device."""

import json

import pytest
import torch

from conftest import program

MARGIN = 0.05
"""Least lead of the best token in bfloat16, in standard deviations of the logits: two
implementations that round differently agree above it."""
OFFLINE = {"EMULATOR_MEMORY": str(2 << 30), "OMP_NUM_THREADS": "1"}


def tokens(model, prompts, **options) -> list[list[int]]:
    order = json.dumps({"prompts": prompts, "options": options})
    return json.loads(
        program("offline.py", str(model), order, **OFFLINE).splitlines()[-1]
    )


def test_float32(moe_model, moe_samples):
    found = tokens(moe_model, [s.prompt for s in moe_samples], dtype="float32")
    assert found == [list(s.tokens) for s in moe_samples]


def test_late_streams_and_a_small_cache(moe_model, moe_samples, monkeypatch):
    """Prompts in pieces, preemption, and every copy to the host as late as can be."""
    monkeypatch.setenv("EMULATOR_LATE", "1")
    prompts = [s.prompt for s in moe_samples]
    small = {"max_num_batched_tokens": 64, "num_gpu_blocks_override": 8}
    found = tokens(moe_model, prompts, dtype="float32", **small)
    assert found == [list(s.tokens) for s in moe_samples]


def test_bfloat16(moe_model, moe_samples):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(moe_model, dtype=torch.bfloat16).eval()
    expected = []
    for sample in moe_samples:
        output = model.generate(
            torch.tensor([sample.prompt]),
            max_new_tokens=16,
            min_new_tokens=16,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
        )
        logits = torch.stack(list(output.scores))[:, 0].float()
        best = logits.topk(2, dim=-1).values
        lead = (best[:, 0] - best[:, 1]) / logits[:, 1:].std(dim=-1)
        clear = int((lead < MARGIN).int().cumsum(0).eq(0).sum())
        expected.append(output.sequences[0, len(sample.prompt) :].tolist()[:clear])
    assert sum(len(e) for e in expected) > 100, "too few tokens to compare"
    found = tokens(moe_model, [s.prompt for s in moe_samples], dtype="bfloat16")
    assert [f[: len(e)] for f, e in zip(found, expected, strict=True)] == expected


@pytest.mark.parametrize("kind", ["dense"])
def test_a_dense_model(kind, dense_model):
    from hugging_face import samples

    expected = samples(dense_model)
    found = tokens(dense_model, [s.prompt for s in expected], dtype="float32")
    assert found == [list(s.tokens) for s in expected]
