"""What a stranger on the machine writes: a bounded length is read, and only shown."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from vllm_balance.doctor import hang
from vllm_balance.doctor.blame import Server
from vllm_balance.doctor.lines import Line, show
from vllm_balance.doctor.processes import (
    READ_BYTES,
    Process,
    all_processes,
    clients_of,
    family,
    look_at,
)

ME = str(os.geteuid())
TEXT = json.dumps(
    {"rank": 1, "size": 2, "wave": 3, "step": 4, "doing": "model", "since": 1.0}
    | {"seen": 2.0, "others": {}, "stack": "f(a/b.py:1)"}
)
MEMORY = 'file = os.memfd_create("vllm-balance status")'
DISK = 'file = os.open("vllm-balance status", os.O_RDWR | os.O_CREAT)'


@contextlib.contextmanager
def rank(opens: str, folder: str) -> Iterator[int]:
    """A process with the title of a rank, whose status file has 2 GiB."""
    code = f"import os, time; {opens}; os.write(file, {TEXT!r}.encode())\n"
    code += "os.ftruncate(file, 1 << 31); print(flush=True); time.sleep(60)"
    words = ["VLLM::EngineCore_DP1", "-c", code]
    with subprocess.Popen(
        words, executable=sys.executable, cwd=folder, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_status_file_without_end_is_read_in_part(tmp_path):
    with rank(MEMORY, tmp_path) as pid:
        mine, others = look_at(pid, ME), look_at(pid, "another")
        assert all_processes()[pid].status is None
    assert mine is not None
    assert mine.status is not None
    assert (mine.name, mine.status.position) == ("rank 1", (3, 4))
    assert len(mine.status.stack) <= READ_BYTES
    assert others is not None
    assert others.status is None


def test_only_a_file_in_memory_is_a_status_file(tmp_path):
    with rank(DISK, tmp_path) as pid:
        found = look_at(pid, ME)
    assert found is not None
    assert found.status is None


@pytest.mark.parametrize(
    "text", ["\x1b[2J", "\r", "\x9b1m", "\u202e", "\udc80", "\x7f"]
)
def test_no_text_moves_the_cursor(text):
    line = Line(f"rank{text}", "bad", f"at {text}f(a)", text, text)
    assert str(line).isprintable()
    assert show([line], True).replace("\n", "").isprintable()
    assert json.loads(show([line], True))["lines"][0]["expected"] == text


def test_a_log_with_a_number_without_end():
    me = Process(os.getpid(), 1, "S", "front-end", "", (), None, 0.0, "", ME)
    assert list(family(me.pid, {me.pid: me}, f"(a pid={'9' * 5000})"))


def test_an_answer_without_end_is_not_waited_for(monkeypatch):
    """A stranger has the port: bytes come one by one, so that no single wait ends."""
    monkeypatch.setattr(hang, "ANSWER_S", 0.5)
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    connection.sendall(b"x")
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        port = str(server.getsockname()[1])
        words = ("vllm", "serve", "m", "--host", "::1", "--port", port)
        front = Process(os.getpid(), 0, "S", "front-end", "", words, None, 0.0, "", ME)
        problem, waiting = hang.ask(Server([front], 0.0, {}))
    assert f"does not answer on ::1, port {port}" in problem
    assert waiting is None


def test_it_needs_nothing_but_the_standard_library():
    """Also where torch or vllm cannot be imported."""
    program = (
        "import sys; from vllm_balance.doctor import command, hang;"
        "print({'torch', 'vllm', 'numpy', 'packaging'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.stdout == b"set()\n", done.stderr


def test_open_connections_of_clients_are_counted():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert clients_of(os.getpid(), port) == 0
        with socket.create_connection(("127.0.0.1", port)):
            assert clients_of(os.getpid(), port) == 1
