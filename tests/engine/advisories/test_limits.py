"""Limits that an operator sets by environment variables."""

import os

import pytest
from vllm import envs
from vllm.fixes.limits import limit


def test_a_limit_that_is_no_number_is_refused_by_its_name(monkeypatch):
    monkeypatch.setattr(envs, "environment_variables", dict(envs.environment_variables))
    # What an earlier test of this process made upstream set for its own processes.
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_MAX_TESTS", "7")
    assert limit("VLLM_MAX_TESTS", 3) == 7
    envs.validate_environ(hard_fail=True)
    monkeypatch.setenv("VLLM_MAX_TESTS", "many")
    with pytest.raises(ValueError, match="VLLM_MAX_TESTS: expected a whole number"):
        limit("VLLM_MAX_TESTS", 3)
