"""The platform: when it is chosen, its defaults, and what it refuses."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.utils.argparse_utils import FlexibleArgumentParser

from vllm_balance import reference
from vllm_balance.reference.limits import check_sampling
from vllm_balance.reference.platform import KV_CACHE_BYTES
from vllm_balance.reference.worker import ReferenceWorker


def test_steps_back_for_another_plugin(tmp_path, monkeypatch):
    info = tmp_path / "vendor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: vendor\nVersion: 1.0\n")
    points = "[vllm.platform_plugins]\nvendor = vendor:register\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert reference.register() is None
    monkeypatch.setenv("VLLM_PLUGINS", "reference")
    assert reference.register() == reference.PLATFORM
    monkeypatch.setenv("VLLM_PLUGINS", "reference,vendor")
    assert reference.register() is None


def test_defaults(moe_model):
    config = EngineArgs(str(moe_model)).create_engine_config()
    assert config.parallel_config.distributed_executor_backend == "uni"
    assert config.scheduler_config.async_scheduling
    assert str(config.model_config.dtype) == "torch.float32"
    assert config.cache_config.kv_cache_memory_bytes == KV_CACHE_BYTES
    assert config.compilation_config.mode.name == "NONE"


def test_what_was_asked_for_is_kept(moe_model):
    config = EngineArgs(
        str(moe_model),
        distributed_executor_backend="mp",
        async_scheduling=False,
        dtype="bfloat16",
        kv_cache_memory_bytes=2**20,
        worker_cls="elsewhere.Worker",
    ).create_engine_config()
    assert config.parallel_config.distributed_executor_backend == "mp"
    assert config.parallel_config.worker_cls == "elsewhere.Worker"
    assert not config.scheduler_config.async_scheduling
    assert str(config.model_config.dtype) == "torch.bfloat16"
    assert config.cache_config.kv_cache_memory_bytes == 2**20


def parse(*options):
    parser = FlexibleArgumentParser()
    parser.add_argument("--api-server-count", type=int, default=None)
    return AsyncEngineArgs.add_cli_args(parser).parse_args(list(options))


def test_command_line_defaults(monkeypatch):
    monkeypatch.setattr("sys.argv", ["vllm", "serve"])
    assert parse().api_server_count == 1
    assert parse().distributed_executor_backend == "uni"
    assert parse("--api-server-count", "2").api_server_count == 2
    # Upstream refuses the two together.
    monkeypatch.setattr("sys.argv", ["vllm", "serve", "--headless"])
    assert parse().api_server_count is None


NGRAM_GPU = {"num_speculative_tokens": 2, "prompt_lookup_max": 2, "method": "ngram_gpu"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8: .* stores plain values"),
        ({"enable_lora": True}, "--enable-lora: .* adapts no layers"),
        ({"compilation_config": {"mode": 3}}, "mode=VLLM_COMPILE: .* compiles nothing"),
        (
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 2},
            "--decode-context-parallel-size.* no context parallelism",
        ),
        (
            {"quantization": "fp8", "dtype": "bfloat16"},
            "--quantization fp8: .* no quantised operators",
        ),
        (
            {"speculative_config": NGRAM_GPU},
            "method=ngram_gpu: .* drafts by ngram",
        ),
    ],
)
def test_refuses(options, message, moe_model):
    with pytest.raises(ValueError, match=message):
        EngineArgs(str(moe_model), **options).create_engine_config()


def test_refuses_the_second_model_runner(moe_model, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with pytest.raises(ValueError, match="V1 model runner only"):
        EngineArgs(str(moe_model)).create_engine_config()


def test_refuses_to_speculate_at_random():
    check_sampling(speculative=True, temperature=0.0)
    check_sampling(speculative=False, temperature=0.7)
    with pytest.raises(
        VLLMValidationError, match=r"temperature=0\.7: .* send temperature=0"
    ):
        check_sampling(speculative=True, temperature=0.7)


def bound(rank, local=0, world=1):
    """The cores of a thread that has taken those of a worker; new ones are free."""
    parallel = {"data_parallel_rank_local": rank, "local_world_size": world}
    worker = SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel), local_rank=local
    )
    with ThreadPoolExecutor(1) as thread:
        thread.submit(ReferenceWorker._bind, worker).result()
        return thread.submit(os.sched_getaffinity, 0).result()


def test_a_rank_stays_on_its_cores(monkeypatch):
    every = os.sched_getaffinity(0)
    first, last = min(every), max(every)
    for free in ("nobind", "auto"):
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", free)
        assert bound(1) == every
    ranges = f"{first}|{last}|{first},{last}"
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", ranges)
    assert bound(None) == bound(0) == {first}
    assert bound(1) == bound(0, local=1, world=2) == {last}
    assert bound(2) == {first, last}
    assert os.sched_getaffinity(0) == every


@pytest.mark.parametrize("value", ["0", "0|4095", "0|a", "0|"])
def test_cores_that_are_not_there_are_refused(value, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", value)
    said = rf"^VLLM_CPU_OMP_THREADS_BIND={re.escape(value)}: .* for rank 1: "
    with pytest.raises(ValueError, match=said):
        bound(1)
