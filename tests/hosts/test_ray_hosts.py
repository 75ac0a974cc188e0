"""Ray places the ranks of one group on two hosts."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from balance_tools.serving.server import Server
from deployment import OPTIONS, RANKS, environment
from hugging_face import Sample
from netns import Host, network
from test_several_hosts import assert_serves

PORT = 6379
RAY = str(Path(sys.executable).with_name("ray"))
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 32 * "0"}
"""Newer releases of Ray ask for one."""


@contextlib.contextmanager
def ray_node(host: Host, *options: str) -> Iterator[None]:
    """Ray on one host, as `docs/deployment.md` starts it, with two devices."""
    command = [
        *(*host.enter, RAY, "start", "--block", "--node-ip-address", host.address),
        *("--resources", f'{{"NPU": {RANKS}}}', "--num-cpus", str(2 * RANKS)),
        *("--object-store-memory", str(80 * 2**20), "--disable-usage-stats"),
        *options,
    ]
    ray = psutil.Popen(
        command, env=environment(host) | TOKEN, stdout=subprocess.PIPE, text=True
    )
    try:
        said = []
        for line in ray.stdout:
            said.append(line)
            if "--block" in line:  # it has started
                break
        else:
            pytest.fail("".join(said))
        yield
    finally:
        processes = [ray, *ray.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=30)


def test_ray_places_ranks_on_two_hosts(
    moe_model: Path,
    moe_samples: list[Sample],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if not request.config.getoption("every"):
        pytest.skip("only with --every")
    with network(2) as hosts, contextlib.ExitStack() as stack:
        first, second = hosts
        address = f"{first.address}:{PORT}"
        head = ("--head", "--port", str(PORT), "--include-dashboard=false")
        stack.enter_context(ray_node(first, *head))
        stack.enter_context(ray_node(second, "--address", address))
        server = Server(
            *(tmp_path, moe_model, *OPTIONS),
            *("--data-parallel-size", str(2 * RANKS)),
            *("--data-parallel-size-local", str(RANKS)),
            *("--data-parallel-backend", "ray"),
            *("--data-parallel-address", first.address),
            environment=environment(first) | TOKEN | {"RAY_ADDRESS": address},
            address=first.address,
            enter=first.enter,
        )
        with server:
            assert_serves([server], 2 * RANKS, moe_samples)
        assert f"ip={second.address}" in server.log.read_text()
