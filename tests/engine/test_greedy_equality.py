"""Over HTTP, the engine writes what Hugging Face writes, in every way it can be run."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from balance_tools.serving.server import Server
from hugging_face import NEW_TOKENS, Sample

SCHEDULING = {"async": "--async-scheduling", "sync": "--no-async-scheduling"}


def assert_equal(
    server: Server, expected: list[Sample], concurrency: int, spread: int = 13
) -> None:
    """Every prompt gets the expected tokens at this concurrency.

    Of `spread` different lengths, because ranks whose requests all end at once are
    never held.
    """
    lengths = [NEW_TOKENS - i % spread for i in range(len(expected))]
    got = server.complete([s.prompt for s in expected], lengths, concurrency)
    different = [
        f"prompt of {len(sample.prompt)} tokens: {list(sample.tokens[:length])} "
        f"expected, {tokens} found"
        for sample, length, tokens in zip(expected, lengths, got, strict=True)
        if tokens != list(sample.tokens[:length])
    ]
    assert not different, f"concurrency {concurrency}:\n" + "\n".join(different)


def assert_the_gate_held(server: Server, ranks: int) -> None:
    """Every rank decided, and admissions were held somewhere."""
    decisions, held, holds, exchanges = server.settled_metrics(
        "vllm:dp_balance_decisions_total",
        "vllm:dp_balance_held_steps_total",
        "vllm:dp_balance_hold_length_steps_count",
        "vllm:dp_balance_exchange_seconds_count",
    )
    assert sorted(decisions) == list(range(ranks))
    assert min(decisions.values()) > 0
    assert exchanges == decisions
    assert sum(held.values()) > 0
    assert sum(holds.values()) > 0


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
    options += ["--data-parallel-balance", balance]
    if balance != "off":
        options += ["--max-num-seqs", "2"]  # ranks fill up, so that the gate holds
    with Server(tmp_path, moe_model, *options) as server:
        assert_equal(server, moe_samples, concurrency=16)
        if balance != "off":
            assert_the_gate_held(server, ranks)
        server.forget_prefixes()
        assert_equal(server, moe_samples, concurrency=8)
        assert_equal(server, moe_samples, concurrency=1)  # prefixes cached by now
        served = server.metric("vllm:request_success_total")
        assert sorted(served) == list(range(ranks))
        assert min(served.values()) > 0, f"a rank served nothing: {served}"
        assert sum(server.metric("vllm:prefix_cache_hits_total").values()) > 0
    # What was asked for; upstream refuses to start where it cannot have it.
    assert f"'async_scheduling': {scheduling == 'async'}" in server.log.read_text()


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
    # 12 blocks of 32 tokens: one request of 300 tokens fits, sixteen do not.
    options = ("--block-size", "32", "--num-gpu-blocks-override", "12")
    limit = ("--max-model-len", "320")
    with Server(tmp_path, moe_model, *options, *limit) as server:
        # Of full length: each grows by a block while it runs. Whether one is preempted
        # depends on who runs beside it, so there is more than one round.
        for _ in range(5):
            assert_equal(server, moe_samples, concurrency=16, spread=1)
            if preempted := sum(server.metric("vllm:num_preemptions_total").values()):
                break
        assert preempted > 0


def test_chunked_prefill(
    moe_model: Path, moe_samples: list[Sample], tmp_path: Path
) -> None:
    options = ("--max-num-batched-tokens", "48", "--max-num-seqs", "16")
    with Server(tmp_path, moe_model, "-dp", "2", *options) as server:
        assert_equal(server, moe_samples, concurrency=16)
    # No longer prompt fits into a step, so it is only run if it is cut.
    log = server.log.read_text()
    assert "Chunked prefill is enabled with max_num_batched_tokens=48" in log


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
