"""The Ray data-parallel backend runs the same engine, and gate, in Ray's actors."""

import psutil
import pytest
import ray

from test_greedy_equality import (
    assert_all_served,
    assert_equal,
    assert_the_gate_decided,
)
from vllm_server import Server

RANKS = 2


@pytest.fixture
def ray_address(monkeypatch):
    """The address of a Ray of this machine alone, with a device for each rank."""
    # By default 15: beside a busy test the ranks would not begin in minutes.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    context = ray.init(
        address="local",  # not one that another `ray start` has left word of
        num_cpus=2 * RANKS,
        resources={"NPU": RANKS},
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )
    ours = psutil.Process().children(recursive=True)
    yield context.address_info["address"]
    ray.shutdown()
    ours = [process for process in ours if process.pid not in before]
    _, alive = psutil.wait_procs(ours, timeout=120)
    assert not alive, f"Ray left processes behind: {alive}"


@pytest.mark.slow
@pytest.mark.ci
def test_ray_data_parallel(ray_address, moe_model, moe_samples, tmp_path):
    environment = {"RAY_ADDRESS": ray_address, "RAY_USAGE_STATS_ENABLED": "0"}
    options = ("-dp", str(RANKS), "--data-parallel-backend", "ray")
    balance = ("--data-parallel-balance", "cap", "--max-num-seqs", "2")
    with Server(
        tmp_path, moe_model, *options, *balance, environment=environment
    ) as server:
        assert_equal(server, moe_samples, concurrency=16)
        assert_the_gate_decided(server, RANKS)
        assert_all_served(server, RANKS)
    assert "DPMoEEngineCoreActor" in server.log.read_text()
