"""What one client can do to all others: a bad request fails, and nothing else."""

import pytest

from vllm_server import Server

GOOD = {"prompt": [5, 6], "max_tokens": 4, "temperature": 0, "ignore_eos": False}
OUT = [10**6]
"""A token that no model has."""
DEEP = '{"items":' * 101 + "{}" + "}" * 101
"""A level more than the limit."""
REQUESTS = [
    # The first grammar chooses the compiler of all.
    ({"structured_outputs": {"regex": "[ab]c"}}, 200),
    ({"structured_outputs": {"grammar": 'start: %json {"type": "object"}'}}, 500),
    ({"structured_outputs": {"json_object": False}}, 400),
    ({"structured_outputs": {"json": ""}}, 400),
    ({"structured_outputs": {"json": DEEP}}, 400),
    ({"stop_token_ids": OUT, "min_tokens": 2}, 400),
    ({"stop_token_ids": [-1], "min_tokens": 2}, 400),
    ({"allowed_token_ids": OUT}, 400),
    ({"vllm_xargs": {"a": 2**64}}, 500),  # no message to a rank can say it
]
"""Upstream accepts each; most end its engines."""


@pytest.mark.parametrize("policy", [pytest.param("off", marks=pytest.mark.slow), "cap"])
def test_a_bad_request_fails_alone(moe_model, tmp_path, policy):
    options = ("-dp", "2", "--data-parallel-balance", policy, "--max-model-len", "256")
    with Server(tmp_path, moe_model, *options, forked=True) as server:
        for rank in (-1, 2):
            assert server.ask(rank, **GOOD).status_code == 400
        for change, status in REQUESTS:
            answer = server.ask(0, **GOOD | change)
            assert answer.status_code == status, (change, answer.text)
            for rank in (0, 1):
                assert server.ask(rank, **GOOD).status_code == 200, change
        engines = server.metric("vllm:generation_tokens_total")
        answer = server.post("/scale_elastic_ep", {"new_data_parallel_size": 3})
        assert answer.status_code == 400, answer.text
        assert server.metric("vllm:generation_tokens_total") == engines
    assert "its request fails" in server.log.read_text()
