"""What a server listens on, beside what docs/deployment.md says of it."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from balance_tools.serving.server import Server
from test_greedy_equality import BOUND

PAGE = Path(__file__).parents[2] / "docs/deployment.md"
SEVERAL_HOSTS = "the same; ranks on several hosts"


def rows() -> dict[str, str]:
    """The addresses of the page's table, by who has them, for one host."""
    section = PAGE.read_text().partition("## What listens where")[2]
    table = [line.strip("|").split("|") for line in section.splitlines() if "|" in line]
    found = {cells[0].strip(): cells[2].strip() for cells in table[2:]}
    assert SEVERAL_HOSTS in found
    del found[SEVERAL_HOSTS]
    return found


def sockets(server: Server) -> Iterator[tuple[str, str, str]]:
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


@pytest.mark.slow
def test_a_server_listens_where_the_page_says(moe_model, tmp_path):
    """With two API servers, whose own sockets nobody else can name."""
    options = ("-dp", "2", "--data-parallel-balance", "adaptive")
    options += ("--api-server-count", "2")
    prompts = [[5 + number] * 1100 for number in range(8)]
    with Server(tmp_path, moe_model, *options, environment=BOUND) as server:
        server.complete(prompts, 4, 4)
        found = {*sockets(server)}
    everywhere, loopback = re.compile(r"(0\.0\.0\.0|\*|\[::\]):\d+"), "127.0.0.1:"
    temporary = re.compile(re.escape(tempfile.gettempdir()) + r"/\S+")
    seen = {
        who: {
            (process, kind, address)
            for process, kind, address in found
            if is_one(process, kind, address)
        }
        for who, is_one in {
            "API server": lambda _, kind, address: (
                kind == "tcp" and address == f"{loopback}{server.port}"
            ),
            "rank 0": lambda process, kind, address: (
                process == "VLLM::EngineCore_DP0"
                and kind == "tcp"
                and everywhere.fullmatch(address)
            ),
            "every rank, and a worker of its own if it has any": (
                lambda process, kind, address: (
                    process.startswith("VLLM::EngineCore_DP")
                    and kind == "tcp"
                    and address.startswith(loopback)
                    and address != f"{loopback}{server.port}"
                )
            ),
            "coordinator, API server, ranks' handshake; all ranks on one host": (
                lambda _, kind, address: kind == "u_str" and temporary.match(address)
            ),
            "API servers of a host, from two on": lambda process, kind, address: (
                process.startswith("VLLM::APIServer")
                and (kind, address) == ("u_dgr", "*")
            ),
        }.items()
    }
    assert seen.keys() == rows().keys()
    assert all(seen.values()), seen
    assert found == set().union(*seen.values())
