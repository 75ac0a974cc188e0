"""What one client can do to all others: a bad request fails, and nothing else.

None of these would harm a server without our patches: the model is so small that usual
ids of tokens are none of it, and the compiler that refuses a grammar is of the tests.
"""

from pathlib import Path

import pytest

from hostile_scheduler import REFUSED
from vllm_server import Server

GOOD = {"prompt": [5, 6], "max_tokens": 4, "temperature": 0, "ignore_eos": False}
OUT = [1000]
"""A token that the model does not have."""
REQUESTS = [
    # The first grammar chooses the compiler of all.
    ({"structured_outputs": {"regex": "[ab]c"}}, 200),
    ({"structured_outputs": {"regex": REFUSED}}, 500),
    ({"stop_token_ids": OUT, "min_tokens": 2}, 400),
    ({"allowed_token_ids": OUT}, 400),
]


@pytest.mark.parametrize("policy", [pytest.param("off", marks=pytest.mark.slow), "cap"])
def test_a_bad_request_fails_alone(moe_model, tmp_path, policy):
    options = ("-dp", "2", "--data-parallel-balance", policy, "--max-model-len", "256")
    options += ("--async-scheduling", "--scheduler-cls", "hostile_scheduler.Refusing")
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with Server(tmp_path, moe_model, *options, environment=path) as server:
        for rank in (-1, 2):
            assert server.ask(rank, **GOOD).status_code == 400
        for change, status in REQUESTS:
            answer = server.ask(0, **GOOD | change)
            assert answer.status_code == status, (change, answer.text)
            for rank in (0, 1):
                assert server.ask(rank, **GOOD).status_code == 200, change
        engines = server.metric("vllm:generation_tokens_total")
        answer = server.post("/scale_elastic_ep", {})
        assert answer.status_code == 400, answer.text
        assert "this server cannot be resized" in answer.text
        assert server.metric("vllm:generation_tokens_total") == engines
    assert "its request fails" in server.log.read_text()
