"""What a deployment on one host listens on: as docs/deployment.md says."""

import os

import psutil
from vllm.distributed import utils

from balance_tools.serving.server import Server

OPTIONS = ("--data-parallel-size", "2", "--data-parallel-balance", "cap")
BOUND = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


def group_of(process_id):
    try:
        return os.getpgid(process_id)
    except ProcessLookupError:  # another program, gone meanwhile
        return None


def listening(server):
    """(address, port, process id) of every socket that the server listens on."""
    sockets = [
        (*connection.laddr, connection.pid)
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid
    ]
    (group,) = {group_of(pid) for _, port, pid in sockets if port == server.port}
    return [socket for socket in sockets if group_of(socket[2]) == group]


def test_only_two_stores_are_on_all_interfaces(moe_model, tmp_path):
    """Both of rank 0, until 0.30; on 0.33 one is rank 1's."""
    with Server(tmp_path, moe_model, *OPTIONS, environment=BOUND) as server:
        server.completion([1, 2, 3], 4)
        sockets = listening(server)
        public = [socket for socket in sockets if socket[0] != "127.0.0.1"]
        assert {address for address, _, _ in public} <= {"::", "0.0.0.0"}
        owners = [psutil.Process(pid).cmdline()[0] for _, _, pid in public]
    others = [owner for owner in owners if owner != "VLLM::EngineCore_DP0"]
    assert len(owners) == 2
    assert others in ([], ["VLLM::EngineCore_DP1"] * hasattr(utils, "cpu_all_reduce_"))
    assert len(sockets) > 10  # gloo's, on the loopback interface
