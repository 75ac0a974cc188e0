"""Over HTTP, the engine writes what Hugging Face writes, in every way it can be run."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import NEW_TOKENS, has_balance
from harness import Server
from hugging_face import Sample

SCHEDULING = {"async": "--async-scheduling", "sync": "--no-async-scheduling"}


def assert_equal(server: Server, expected: list[Sample], concurrency: int) -> None:
    """Every prompt gets the expected tokens at this concurrency."""
    got = server.complete([s.prompt for s in expected], NEW_TOKENS, concurrency)
    different = [
        f"prompt of {len(sample.prompt)} tokens: {list(sample.tokens)} expected, "
        f"{tokens} found"
        for sample, tokens in zip(expected, got, strict=True)
        if tokens != list(sample.tokens)
    ]
    assert not different, f"concurrency {concurrency}:\n" + "\n".join(different)


def matrix() -> Iterator[tuple[int, str, str]]:
    """Ranks, scheduling, balance; one rank has nothing to balance."""
    for ranks, scheduling in itertools.product((1, 2, 4), SCHEDULING):
        for balance in ("off", "cap") if ranks > 1 else ("off",):
            yield ranks, scheduling, balance


@pytest.mark.parametrize(("ranks", "scheduling", "balance"), list(matrix()))
def test_equals_hugging_face(
    ranks: int,
    scheduling: str,
    balance: str,
    moe_model: Path,
    moe_samples: list[Sample],
    tmp_path: Path,
) -> None:
    options = ["--data-parallel-size", str(ranks), SCHEDULING[scheduling]]
    if has_balance():
        options += ["--data-parallel-balance", balance]
    elif balance != "off":
        pytest.skip("this vLLM has no --data-parallel-balance")
    with Server(tmp_path, moe_model, *options) as server:
        assert_equal(server, moe_samples, concurrency=16)
        server.forget_prefixes()
        assert_equal(server, moe_samples, concurrency=8)
        assert_equal(server, moe_samples, concurrency=1)  # prefixes cached by now
        served = server.metric("vllm:request_success_total")
        assert sorted(served) == list(range(ranks))
        assert min(served.values()) > 0, f"a rank served nothing: {served}"
        assert sum(server.metric("vllm:prefix_cache_hits_total").values()) > 0
    word = "enabled" if scheduling == "async" else "disabled"
    assert f"Asynchronous scheduling is {word}" in server.log.read_text()


def test_worker_process_started_by_spawn(
    moe_model: Path, moe_samples: list[Sample], tmp_path: Path
) -> None:
    spawn = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    options = ("--distributed-executor-backend", "mp")
    with Server(tmp_path, moe_model, *options, environment=spawn) as server:
        assert_equal(server, moe_samples, concurrency=8)
    assert "(Worker pid=" in server.log.read_text()


def test_tensor_parallel(
    moe_model: Path, moe_samples: list[Sample], tmp_path: Path
) -> None:
    with Server(tmp_path, moe_model, "-tp", "2") as server:
        assert_equal(server, moe_samples, concurrency=8)


def test_expert_parallel(
    moe_model: Path, moe_samples: list[Sample], tmp_path: Path
) -> None:
    options = ("-dp", "2", "--enable-expert-parallel")
    with Server(tmp_path, moe_model, *options) as server:
        assert_equal(server, moe_samples, concurrency=16)
        assert_equal(server, moe_samples, concurrency=1)
    assert "Local/global number of experts: 4/8" in server.log.read_text()


def test_dense_model(
    dense_model: Path, dense_samples: list[Sample], tmp_path: Path
) -> None:
    with Server(tmp_path, dense_model) as server:
        assert_equal(server, dense_samples, concurrency=8)


def test_preempted_requests(
    moe_model: Path, moe_samples: list[Sample], tmp_path: Path
) -> None:
    # 24 blocks of 16 tokens: one request of 300 tokens fits, sixteen do not.
    options = ("--block-size", "16", "--num-gpu-blocks-override", "24")
    limit = ("--max-model-len", "320")
    with Server(tmp_path, moe_model, *options, *limit) as server:
        assert_equal(server, moe_samples, concurrency=16)
        assert sum(server.metric("vllm:num_preemptions_total").values()) > 0


def test_chunked_prefill(
    moe_model: Path, moe_samples: list[Sample], tmp_path: Path
) -> None:
    options = ("--max-num-batched-tokens", "48", "--max-num-seqs", "16")
    with Server(tmp_path, moe_model, "-dp", "2", *options) as server:
        assert_equal(server, moe_samples, concurrency=16)
        steps = server.metric("vllm:iteration_tokens_total_count")
        small = server.metric("vllm:iteration_tokens_total_bucket", le="64.0")
        assert small == steps, "a step took more than 64 tokens"


def test_ngram_speculation(
    moe_model: Path, moe_samples: list[Sample], tmp_path: Path
) -> None:
    pytest.importorskip("numba", reason="upstream's n-gram proposer needs numba")
    config = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
    }
    options = ("--speculative-config", json.dumps(config))
    with Server(tmp_path, moe_model, *options) as server:
        assert_equal(server, moe_samples, concurrency=8)
        accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
        drafted = server.metric("vllm:spec_decode_num_draft_tokens_total")
        assert 0 < sum(accepted.values()) < sum(drafted.values())
        random_request = {"prompt": [5, 6], "temperature": 0.5}
        response = server.post(
            "/v1/completions", {"model": str(moe_model), **random_request}
        )
        assert response.status_code == 400
        assert "send temperature=0" in response.text
