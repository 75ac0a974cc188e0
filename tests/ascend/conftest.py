"""Fixtures of the tests on the emulated device.

Run them inside it, as `make test-ascend` does: `build/ascend/run pytest tests/ascend`.
"""

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

# First: it loads torch_npu. Where torch_npu is imported before torch, it tells all
# programs that are started later not to.
import torch

import architectures
import integers
from architectures import tiny_models

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["VLLM_DISABLE_COMPILE_CACHE"] = "1"  # it does not know the emulator
os.environ.setdefault("HCCL_CONNECT_TIMEOUT", "3600")  # ranks start at different times

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PROGRAM_S = 3600
"""Only a hang is to meet it: on a machine with much else to do, imports of torch_npu
and the plugin alone have taken ten minutes. No test measures time."""

LONGEST = ("test_upstream", "test_serving", "test_flags")
"""These files first: else one of them is left to one worker at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests time, and the longest the first turn."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PROGRAM_S + 60))
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_sessionstart() -> None:
    """Refuse to run on anything else."""
    spec = importlib.util.find_spec("vllm_ascend")
    if "emulated_cann" not in os.environ.get("EMULATED_NPU", "") or spec is None:
        raise pytest.UsageError(
            "tests/ascend: expected the emulated device, found none; "
            "run make test-ascend, or build/ascend/run pytest tests/ascend"
        )
    if Path(spec.origin or "").is_relative_to(ROOT / "vllm_ascend"):
        raise pytest.UsageError(
            f"{spec.origin}: the source tree is on the import path; these tests check "
            "an installed wheel: run pytest, not python -m pytest"
        )


def program(name: str, *arguments: str, **environment: str) -> str:
    """What a program of this folder prints.

    It runs in an empty folder: vLLM looks at models in a process of its own, which
    imports from the folder in which it runs.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [sys.executable, str(HERE / name), *arguments],
            env={**os.environ, **environment},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
        )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
    return result.stdout


def says(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        cwd="/",
    )


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a tiny model by its name, and what Hugging Face writes with it.

    With `integers.SUFFIX` and the bits behind its name the model is quantised.
    """
    folder, made = tmp_path_factory.mktemp("models"), {}
    tiny = functools.cache(functools.partial(tiny_models.make, out=folder))

    def find(name: str):
        from hugging_face import samples

        if name not in made:
            kind, _, bits = name.partition(integers.SUFFIX)
            makers = {"deepseek": rounded_samples, "GLM-5": sparse_samples}
            makers["eagle3"] = lambda _: []
            model, write = tiny(kind), makers.get(kind, samples)
            if not bits:
                made[name] = (model, write(model))
            else:
                change = functools.partial(integers.quantise_in_place, bits=int(bits))
                told = write(model, margin=integers.MARGIN, change=change)
                made[name] = (integers.quantise(model, int(bits)), told)
        return made[name]

    return find


@pytest.fixture(scope="session")
def moe_model(models) -> Path:
    return models("moe")[0]


@pytest.fixture(scope="session")
def dense_model(models) -> Path:
    return models("dense")[0]


@pytest.fixture(scope="session")
def moe_samples(models):
    return models("moe")[1]


LATENT_MARGIN = 0.02
"""Where a rounding of attention goes the other way, scores differ by less."""


def rounded_samples(folder: Path, margin: float = LATENT_MARGIN, **rest):
    """Samples of a model with MLA: the plugin rounds the attention of prompts."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from hugging_face import samples

    ALL_ATTENTION_FUNCTIONS.register("rounded", rounded_attention)
    return samples(folder, "rounded", margin, **rest)


def rounded_attention(module, query, key, value, mask, scaling, **_):
    """Attention of a prompt in bfloat16, whatever the model's type."""
    causal = query.shape[2] > 1
    kind = torch.bfloat16 if causal else query.dtype
    q, k, v = (t.to(kind).float() for t in (query, key, value))
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scaling
    )
    return out.to(kind).to(query.dtype).transpose(1, 2), None


LONGER = 2600


def sparse_samples(folder: Path, change=architectures.interleave):
    """Samples of GLM-5; in the longest, queries leave keys out, and it matters."""
    from hugging_face import _continuation, _load, samples

    found = samples(folder, "eager", change=change, longer=(LONGER,))
    model = _load(folder, "eager")
    for layer in model.model.layers:
        layer.self_attn.indexer.index_topk *= 2
    (longest,) = [sample for sample in found if len(sample.prompt) == LONGER]
    assert _continuation(model, longest.prompt) not in (None, longest.tokens)
    return found


GRAPHS = {
    "compilation_config": {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32],
    }
}
REPLAY, UPDATE = "replay of a graph", "update of a graph"


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    """The test itself fails, and not one behind it, if it leaves a graph that waits."""
    yield
    if torch.npu.is_initialized():
        torch.npu.synchronize()


@pytest.fixture
def counts(tmp_path, monkeypatch) -> Path:
    """The file in which the emulator counts what programs do."""
    monkeypatch.setenv("EMULATOR_COUNTS", str(tmp_path / "counts"))
    return tmp_path / "counts"


def counted(counts: Path) -> Counter[str]:
    """What all processes have done."""
    lines = counts.read_text().splitlines() if counts.exists() else []
    return Counter(line.partition(" ")[2] for line in lines)
