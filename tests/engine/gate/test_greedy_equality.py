"""Over HTTP, the engine writes what Hugging Face writes, in every way it can be run."""

import pytest

from hugging_face import NEW_TOKENS
from vllm_server import Server

CAP = ("--data-parallel-balance", "cap", "--max-num-seqs", "2")  # so that ranks fill up


def assert_equal(server, expected, concurrency):
    """Every prompt gets these tokens; of equal lengths, ranks would never be held."""
    lengths = [NEW_TOKENS - i % 13 for i in range(len(expected))]
    got = server.complete([s.prompt for s in expected], lengths, concurrency)
    different = [
        f"prompt of {len(sample.prompt)} tokens: {list(sample.tokens[:length])} "
        f"expected, {tokens} found"
        for sample, length, tokens in zip(expected, lengths, got, strict=True)
        if tokens != list(sample.tokens[:length])
    ]
    assert not different, f"concurrency {concurrency}:\n" + "\n".join(different)


def assert_the_gate_decided(server, ranks, holds=True):
    """On every rank; and held, but with `adaptive`, by the times of a tiny model."""
    decisions, held, exchanges = server.settled_metrics(
        "vllm:dp_balance_decisions_total",
        "vllm:dp_balance_held_steps_total",
        "vllm:dp_balance_exchange_seconds_count",
    )
    assert sorted(decisions) == list(range(ranks))
    assert min(decisions.values()) > 0
    assert exchanges == decisions
    assert sum(held.values()) > 0 or not holds


def assert_all_served(server, ranks):
    served = server.metric("vllm:request_success_total")
    assert sorted(served) == list(range(ranks))
    assert min(served.values()) > 0, f"a rank served nothing: {served}"


@pytest.mark.slow
@pytest.mark.ci
def test_four_ranks_in_step(moe_model, moe_samples, tmp_path):
    """Synchronous, with expert parallelism."""
    options = ("-dp", "4", "--enable-expert-parallel", "--no-async-scheduling", *CAP)
    with Server(tmp_path, moe_model, *options, forked=True) as server:
        assert_equal(server, moe_samples, concurrency=16)
        assert_the_gate_decided(server, 4)
        assert server.post("/reset_prefix_cache").status_code == 200
        assert_equal(server, moe_samples, concurrency=8)
        assert_equal(server, moe_samples, concurrency=1)  # prefixes cached by now
        assert_all_served(server, 4)
        assert sum(server.metric("vllm:prefix_cache_hits_total").values()) > 0
    log = server.log.read_text()
    assert "Local/global number of experts: 2/8" in log
    assert "'async_scheduling': False" in log
