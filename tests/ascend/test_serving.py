"""`vllm serve` on emulated devices: policies, two and four ranks, equal tokens.

`adaptive` on two ranks is in `test_flags`.
"""

import os
import signal

import psutil
import pytest

import vllm_server
from conftest import PROGRAM_S
from hostile_clients import rank_pids, statuses_after
from test_greedy_equality import assert_equal, assert_the_gate_decided
from vllm_server import Server

OPTIONS = (
    "--dtype=float32",
    "--max-model-len=512",
    "--enforce-eager",
    "--gpu-memory-utilization=0.3",
    "--max-num-batched-tokens=256",
    "--enable-expert-parallel",
    "--api-server-count=1",
    "--max-num-seqs=2",
)
RANKS = "--data-parallel-size"
ENVIRONMENT = {"EMULATOR_MEMORY": str(2 << 30), "OMP_NUM_THREADS": "1"}
TIMEOUT_S = "60"
"""A rank counts as silent after half of it: more than any pause of a busy machine."""
ONE_PROCESS = ("--distributed-executor-backend", "uni")
"""A rank's engine and worker together, which starts sooner; else a process each."""
POLICIES = {
    "off": ONE_PROCESS,
    "cap": ("--data-parallel-balance", "cap"),
    "align": (
        "--data-parallel-balance",
        "align",
        "--no-async-scheduling",
        *ONE_PROCESS,
    ),
    "adaptive": ("--data-parallel-balance", "adaptive", *ONE_PROCESS),
}
FOUR_RANKS = "adaptive"
"""This one runs on four ranks, all others on two."""


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """The engine compiles nothing here, but imports much, perhaps beside other work.

    Only a hang is to meet these limits.
    """
    monkeypatch.setattr(vllm_server, "START_S", PROGRAM_S)
    monkeypatch.setattr(vllm_server, "REQUEST_S", PROGRAM_S)
    monkeypatch.setattr(vllm_server, "SETTLE_S", PROGRAM_S)
    monkeypatch.setattr(vllm_server, "STOP_S", 300)
    monkeypatch.setattr(vllm_server.ServeProcess, "follow_s", 60)


@pytest.mark.timeout(3 * PROGRAM_S)
@pytest.mark.parametrize("policy", POLICIES)
def test_ranks_write_what_hugging_face_writes(policy, moe_model, moe_samples, tmp_path):
    ranks = 4 if policy == FOUR_RANKS else 2
    options = [*OPTIONS, RANKS, str(ranks), *POLICIES[policy]]
    with Server(tmp_path, moe_model, *options, environment=ENVIRONMENT) as server:
        assert_equal(server, moe_samples, concurrency=16)
        log = server.log.read_text()
        assert "Platform plugin ascend is activated" in log
        if policy == "off":
            assert server.metric("vllm:dp_balance_decisions_total") == {}
        else:
            assert_the_gate_decided(server, ranks, "adaptive" not in POLICIES[policy])


@pytest.mark.timeout(3 * PROGRAM_S)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_named_and_the_server_ends(number, moe_model, tmp_path):
    """As docs/operations.md says; HCCL's own time limit is half an hour."""
    options = [*OPTIONS, RANKS, "2", "--data-parallel-balance", "cap"]
    environment = {**ENVIRONMENT, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": TIMEOUT_S}
    with Server(tmp_path, moe_model, *options, environment=environment) as server:
        pids = rank_pids(server)
        assert sorted(pids) == [0, 1]
        engines = [psutil.Process(pid) for pid in pids.values()]
        statuses = statuses_after(server, lambda: os.kill(pids[1], number))
        assert all(status >= 500 for status in statuses), statuses
        psutil.wait_procs(engines, PROGRAM_S)
        log = server.log.read_text()
    assert "rank 1 (process" in log
    assert not any(map(vllm_server.is_alive, pids.values()))
