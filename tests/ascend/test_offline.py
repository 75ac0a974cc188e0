"""The offline engine writes what Hugging Face writes, on the emulated device."""

import json

from conftest import program
from hugging_face import samples

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


def test_a_dense_model(dense_model):
    expected = samples(dense_model)
    found = tokens(dense_model, [s.prompt for s in expected], dtype="float32")
    assert found == [list(s.tokens) for s in expected]
