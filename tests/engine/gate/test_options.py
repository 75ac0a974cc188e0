"""What balance cannot work with is refused."""

from types import SimpleNamespace

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.balance.options import check_balance_scheduler

from schedulers import engine_config, make_scheduler, rank_config


class Extending(AsyncScheduler):
    def schedule(self):
        return super().schedule()


def test_a_scheduler_that_does_not_reach_the_gate_is_refused(config):
    """Also one that copies the schedule, which the live tests try."""
    with pytest.raises(ValueError, match="SimpleNamespace has a schedule"):
        check_balance_scheduler(SimpleNamespace(), config)
    check_balance_scheduler(make_scheduler(config, Extending), config)


def test_the_front_end_in_rust_is_refused(moe_model, monkeypatch):
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "0")
    rank_config(moe_model)
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    rank_config(moe_model, "off")
    with pytest.raises(ValueError, match="not work with VLLM_USE_RUST_FRONTEND"):
        rank_config(moe_model)


def test_an_engine_that_became_dense_or_single_is_refused(
    config, dense_model, scheduler
):
    """Upstream resets the size to 1 in the ranks of a dense model."""
    config.parallel_config.data_parallel_size = 1
    with pytest.raises(ValueError, match="at least two data parallel ranks"):
        check_balance_scheduler(scheduler, config)
    dense = engine_config(dense_model, data_parallel_size=2)
    dense.parallel_config.data_parallel_balance = "cap"
    with pytest.raises(ValueError, match="without MoE layers"):
        check_balance_scheduler(scheduler, dense)


def test_an_engine_in_the_process_of_its_caller_is_refused(
    config, scheduler, monkeypatch
):
    """There the scheduler is stepped without the data parallel loop."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    with pytest.raises(ValueError, match="runs in its caller's process"):
        check_balance_scheduler(scheduler, config)
