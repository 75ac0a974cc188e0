"""The offline engine writes what Hugging Face writes, on the emulated device."""

import json
from itertools import takewhile

import pytest
import torch
from transformers import AutoModelForCausalLM

import integers
from conftest import GRAPHS, REPLAY, UPDATE, counted, program

OFFLINE = {"EMULATOR_MEMORY": str(2 << 30), "OMP_NUM_THREADS": "1"}
EAGER = {"enforce_eager": True}
WHOLE = {"max_num_batched_tokens": 4096, "enable_prefix_caching": False}
"""In float32, the plugin's MLA wants each prompt in one piece."""


def run(model, prompts, **options) -> tuple[list[list[int]], int]:
    """The tokens of each prompt, and how many drafts were accepted."""
    order = json.dumps({"prompts": prompts, "options": options})
    return json.loads(
        program("offline.py", str(model), order, **OFFLINE).splitlines()[-1]
    )


def tokens(model, prompts, **options) -> list[list[int]]:
    return run(model, prompts, **EAGER, **options)[0]


def test_late_streams_and_a_small_cache(moe_model, moe_samples, monkeypatch):
    """Prompts in pieces, preemption, and every copy to the host as late as can be."""
    monkeypatch.setenv("EMULATOR_LATE", "1")
    prompts = [s.prompt for s in moe_samples]
    small = {"max_num_batched_tokens": 64, "num_gpu_blocks_override": 8}
    found = tokens(moe_model, prompts, dtype="float32", **small)
    assert found == [list(s.tokens) for s in moe_samples]


def test_bfloat16(moe_model, moe_samples):
    found = tokens(moe_model, [s.prompt for s in moe_samples], dtype="bfloat16")
    assert count_equal(found, load(moe_model, torch.bfloat16), moe_samples) > 170


def load(folder, dtype):
    """Hugging Face's model, which writes texts of full length."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


def count_equal(found, model, given) -> int:
    """How many tokens are the model's, until a text leaves it.

    With roundings it may: at a near tie of two tokens, or of two experts. A wrong
    operator leaves few: 35 of 352 were equal with another function of the router.
    """
    count = 0
    for sample, text in zip(given, found, strict=True):
        output = model.generate(
            torch.tensor([sample.prompt]),
            max_new_tokens=len(text),
            do_sample=False,
        )
        expected = output[0, len(sample.prompt) :].tolist()
        pairs = zip(text, expected, strict=True)
        count += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    print(f"{count} tokens equal")
    return count


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


MODEL_OPTIONS = {
    "deepseek": WHOLE,
    "GLM-5": {**WHOLE, "max_model_len": 4096},
}


def run_float32(name, model, given, **options):
    """Asserts that the texts are those given; returns how many drafts were accepted."""
    options |= MODEL_OPTIONS.get(name.partition(integers.SUFFIX)[0], {})
    prompts = [sample.prompt for sample in given]
    found, accepted = run(model, prompts, dtype="float32", **options)
    assert found == [list(sample.tokens) for sample in given]
    return accepted


@pytest.mark.parametrize("name", ["dense", "moe"])
def test_graphs(name, models, counts):
    """Of several sizes; each step of decodes alone is one replay."""
    model, given = models(name)
    run_float32(name, model, given, **GRAPHS)
    done = counted(counts)
    assert done[UPDATE] == 2 * done[REPLAY] > 60  # attention of two layers


@pytest.mark.parametrize(
    ("name", "method", "count", "graphs"),
    [
        *(slow("deepseek", "mtp", 1, graphs) for graphs in (False, True)),
        slow("deepseek", "mtp", 3, False),
        ("deepseek", "mtp", 3, True),
        slow("deepseek", "eagle3", 3, True),
        *(slow("GLM-5", "mtp", 0, graphs) for graphs in (False, True)),
        slow("GLM-5", "mtp", 1, False),
        slow("GLM-5", "mtp", 3, True),
    ],
)
def test_mla_and_drafts(name, method, count, graphs, models, counts):
    model, given = models(name)
    speculation = {"method": method, "num_speculative_tokens": count}
    if method == "eagle3":
        speculation["model"] = str(models(method)[0])
    options = dict(GRAPHS if graphs else EAGER)
    if count:
        options["speculative_config"] = speculation
    accepted = run_float32(name, model, given, **options)
    assert (accepted > 100) == bool(count)
    assert (counted(counts)[REPLAY] > 10) == graphs


@pytest.mark.slow
def test_mla_in_pieces(models):
    """Prompts attend to what the cache has of them, in bfloat16."""
    model, given = models("deepseek")
    prompts = [s.prompt for s in given]
    found = tokens(model, prompts, dtype="bfloat16", max_num_batched_tokens=64)
    assert count_equal(found, load(model, torch.bfloat16), given) > 250


@pytest.mark.parametrize(
    ("name", "graphs", "drafts"),
    [
        ("moe in int8", True, 0),
        slow("moe in int8", False, 0),
        slow("deepseek in int8", False, 0),
        slow("deepseek in int8", True, 3),
        slow("moe in int4", False, 0),
        ("deepseek in int4", True, 3),
    ],
)
def test_integers(name, graphs, drafts, models, counts):
    """W8A8 and W4A8, against Hugging Face's model with the same arithmetic."""
    model, given = models(name)
    options = dict(GRAPHS if graphs else EAGER)
    if drafts:
        speculation = {"method": "mtp", "num_speculative_tokens": drafts}
        options["speculative_config"] = speculation
    accepted = run_float32(name, model, given, **options)
    done = counted(counts)
    assert done["npu::npu_quant_matmul"] > 100
    four = done["_C_ascend::grouped_matmul_swiglu_quant_v2"]
    assert (four > 30) == name.endswith("int4")
    assert (done[REPLAY] > 30) == graphs
    assert (accepted > 100) == bool(drafts)
