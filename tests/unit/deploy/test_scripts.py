"""The scripts that start a server and ask how it is."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = (ROOT / "docker/healthcheck.py").read_text()
TIMEOUT = re.compile(r"^TIMEOUT_S = (\d+)$", re.M)


def test_the_wrapper_sources_what_is_there_and_keeps_the_arguments(tmp_path):
    """Files that fail or read arguments, as the vendor's do, change nothing."""
    for folder in ("ascend-toolkit", "nnal/atb"):
        (tmp_path / folder).mkdir(parents=True)
        script = 'export FOUND="$FOUND($*)"; false\n'
        (tmp_path / folder / "set_env.sh").write_text(script)
    program = ["sh", "-c", 'echo "$FOUND|$0|$1"', "a b", "c"]

    def run(home, **more):
        command = [ROOT / "deploy/systemd/with-cann", *program]
        environment = os.environ | {"ASCEND_HOME": str(home)} | more
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert run(tmp_path).stdout == "()(--cxx_abi=1)|a b|c\n"
    assert run(tmp_path / "none", WITHOUT_CANN="1").stdout == "|a b|c\n"
    refused = run(tmp_path / "none")
    assert (refused.returncode, refused.stdout) == (1, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"with-cann: cannot start: there is no {tmp_path}/none/asce")


def alive(*urls, seconds=120, **variables):
    """The exit status of the probe, and what it says; past a proxy that is none."""
    proxy = os.environ | {"http_proxy": "http://127.0.0.1:9"} | variables
    script = TIMEOUT.sub(f"TIMEOUT_S = {seconds}", SCRIPT)
    command = [sys.executable, "-c", script, *urls]
    done = subprocess.run(command, env=proxy, capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout


class Pod(BaseHTTPRequestHandler):
    """Answers once as many are asked as the barrier wants."""

    status, together = 200, threading.Barrier(3)

    def do_GET(self):
        self.together.wait(120)
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_):
        """Not in the test's output."""


@pytest.fixture
def pods_asked():
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Pod) for _ in range(3)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [f"http://127.0.0.1:{server.server_port}/health" for server in servers]
    Pod.status = 200
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_group_is_alive_if_every_pod_is_healthy(pods_asked):
    """None answers before all three are asked."""
    nobody = "http://127.0.0.1:9"
    assert alive(*pods_asked) == (0, "")
    status, words = alive(*pods_asked, nobody)
    assert (status, words.startswith(f"{nobody}: expected the server")) == (1, True)
    Pod.status = 503
    status, words = alive(*pods_asked)
    assert (status, "503" in words) == (1, True)
    _, words = alive("group", seconds=5, POD_NAME="vllm-1", HOSTS="2")
    assert words.startswith("http://vllm-0.vllm-hosts:8000/health: ")


def test_the_probe_ends_in_time_without_any_answer():
    """Also where bytes come one by one, so that no single wait is long."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip():
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                for _ in range(100):
                    connection.sendall(b"H")
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        said = f"{url}: expected the server to be well, found no answer in 1 s\n"
        assert alive(url, seconds=1) == (1, said)
