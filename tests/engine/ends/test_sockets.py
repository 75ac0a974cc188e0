"""What a server listens on, beside what docs/deployment.md says of it."""

import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from vllm_server import Server

PAGE = Path(__file__).parents[3] / "docs/deployment.md"
SEVERAL_HOSTS = "the same; ranks on several hosts"
BOUND = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
"""As the page says."""


def rows():
    """Who listens by the page's table, on one host."""
    section = PAGE.read_text().partition("## What listens where")[2]
    table = [line.split("|") for line in section.splitlines() if line.startswith("|")]
    return {cells[1].strip() for cells in table[2:]} - {SEVERAL_HOSTS}


def sockets(server):
    """Process, kind and local address of what `ss` shows of the server: TCP and UDP
    that listen, and Unix sockets that have a name or are datagrams."""
    owners = {each.pid: each.cmdline()[0] for each in server.processes()}
    for options in ("-Hltunp", "-Hxap"):
        command = ["ss", options]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        for line in shown.stdout.splitlines():
            pids = {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
            kind, _, _, _, address, *_ = line.split()
            datagrams = kind == "u_dgr"
            unnamed = kind.startswith("u_") and address == "*"
            if pids & owners.keys() and (datagrams or not unnamed):
                for pid in pids & owners.keys():
                    yield owners[pid], kind, address


def row_of(process, kind, address, port):
    """Whose the page says it is."""
    if kind == "u_str" and address.startswith(tempfile.gettempdir() + "/"):
        return "coordinator, API server, ranks' handshake; all ranks on one host"
    if kind != "tcp":
        return None
    if address == f"127.0.0.1:{port}":
        return "API server"
    # A forked rank cannot always change its title.
    if process.startswith(("VLLM::APIServer", "VLLM::DPCoordinator")):
        return None
    if address.startswith("127.0.0.1:"):
        return "every rank, and a worker of its own if it has any"
    return "rank 0" if process == "VLLM::EngineCore_DP0" else None


@pytest.mark.slow
def test_a_server_listens_where_the_page_says(moe_model, tmp_path):
    """With two API servers, which have no sockets between them."""
    options = ("-dp", "2", "--data-parallel-balance", "adaptive")
    options += ("--api-server-count", "2")
    prompts = [[5 + number] * 1100 for number in range(8)]
    with Server(tmp_path, moe_model, *options, environment=BOUND) as server:
        server.complete(prompts, 4, 4)
        found = {socket: row_of(*socket, server.port) for socket in sockets(server)}
    assert {*found.values()} == rows(), found
