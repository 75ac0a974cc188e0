"""Ranks whose parent has gone end, though no group would tell them."""

import signal

import psutil
import pytest

from vllm_server import STOP_S, Server, is_alive


@pytest.mark.parametrize(
    "options",
    [
        ("-dp", "2", "--data-parallel-balance", "off"),
        pytest.param(("--data-parallel-balance", "adaptive"), marks=pytest.mark.slow),
    ],
    ids=["ranks of a dense model", "one rank"],
)
def test_ranks_without_a_group_end_with_a_killed_front_end(
    options, dense_model, tmp_path
):
    server = Server(tmp_path, dense_model, *options)
    with server:
        processes = server.processes()
        assert len(processes) >= 2
        server._process.send_signal(signal.SIGKILL)
        _, left = psutil.wait_procs(processes, timeout=STOP_S)
        assert not [each for each in left if is_alive(each.pid)]
