"""A scheduler with the policy `cap`, as one of two ranks has it."""

import pytest

from schedulers import make_scheduler, rank_config


@pytest.fixture
def config(moe_model):
    return rank_config(moe_model)


@pytest.fixture
def scheduler(config):
    return make_scheduler(config)
