"""On two ranks of any release; other tests start with `cap` and `adaptive`."""

import pytest

from test_greedy_equality import (
    assert_all_served,
    assert_equal,
    assert_the_gate_decided,
)
from vllm_server import Server

RANKS = 2


@pytest.mark.parametrize("policy", ["off", "align"])
def test_a_policy_answers_right_decides_and_reports(
    policy, moe_model, moe_samples, tmp_path
):
    options = ["--data-parallel-size", str(RANKS), "--max-num-seqs", "2"]
    options += ["--data-parallel-balance", policy]
    with Server(tmp_path, moe_model, *options, forked=True) as server:
        assert_equal(server, moe_samples, concurrency=16)
        assert_all_served(server, RANKS)
        if policy == "off":
            assert server.metric("vllm:dp_balance_decisions_total") == {}
        else:
            assert_the_gate_decided(server, RANKS)
