"""A scheduler with the policy `cap`, as one of two ranks has it."""

import pytest

from schedulers import engine_config, make_scheduler


@pytest.fixture
def config(moe_model):
    return engine_config(moe_model, data_parallel_size=2, data_parallel_balance="cap")


@pytest.fixture
def scheduler(config):
    return make_scheduler(config)
