"""A Server fails loudly, and leaves no process behind."""

import sys

import pytest

from vllm_server import Server, is_alive


class Imposter(Server):
    def __init__(self, folder, program):
        super().__init__(folder, folder)
        self._command = [sys.executable, "-c", program, str(self.port)]


WEB_SERVER = """
import http.server, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
SLEEPER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
"""
LOSES_ITS_PORT = """
import pathlib
tries = pathlib.Path("tries")
tries.write_text((tries.read_text() if tries.exists() else "") + "|")
raise SystemExit("port: 43331, useIpv6: false, code: -98, name: EADDRINUSE")
"""


@pytest.mark.parametrize(("error", "tries"), [("EADDRINUSE", "||"), ("ENOENT", "|")])
def test_a_server_that_fails_twice_or_otherwise_is_an_error(
    tmp_path, error, tries, capsys
):
    program = LOSES_ITS_PORT.replace("EADDRINUSE", error)
    with (
        pytest.raises(RuntimeError, match="exited with 1"),
        Imposter(tmp_path, program),
    ):
        pass
    assert (tmp_path / "tries").read_text() == tries
    assert error in capsys.readouterr().err, "the end of its log"


def test_orphans_are_ended_and_reported(tmp_path):
    server = Imposter(tmp_path, SLEEPER + WEB_SERVER)
    server.follow_s = 0.5  # this one is not asked to follow
    with pytest.raises(AssertionError, match="left processes behind"), server:
        pass
    child = int(server.log.read_text().split()[1])
    assert not is_alive(child)
