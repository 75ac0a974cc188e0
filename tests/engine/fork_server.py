"""Forks servers from one process that has imported vLLM: that takes 6 s of a core.

A server gets arguments, environment, folder, log and process group of its own, and has
what any process of vLLM has: its modules, and no other thread of Python. What differs
when a program is executed is not for it: its command line in /proc, and variables that
are read on import.
"""

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from threading import Lock

MODULES = (
    *(f"vllm.entrypoints.cli.{n}" for n in ("serve", "benchmark.main", "run_batch")),
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.engine.async_llm",
    "vllm.v1.worker.cpu_worker",
)
MESSAGE = 1 << 17


class Forked:
    """A server, with what `subprocess.Popen` has of one."""

    def __init__(self, forks, pid):
        self.pid = pid
        self._forks = forks

    def poll(self):
        """The exit status; None while it runs."""
        return self._forks.status(self.pid, 0)

    def wait(self, timeout):
        """The exit status.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        status = self._forks.status(self.pid, timeout)
        if status is None:
            raise subprocess.TimeoutExpired("vllm serve", timeout)
        return status

    def send_signal(self, number):
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """The process; it ends with the one that made it."""

    def __init__(self):
        self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self._lock = Lock()
        self._statuses: dict[int, int] = {}

    def start(self, arguments, environment, folder, log):
        """Start `vllm` with these arguments."""
        said = [arguments, environment, str(folder), str(log)]
        with self._lock:
            self._control.send(json.dumps(said).encode())
            while (pid := self._hear()) is None:
                pass
        return Forked(self, pid)

    def status(self, pid, timeout):
        """The exit status of a server; None if it runs after so many seconds."""
        end = time.monotonic() + timeout
        with self._lock:
            while pid not in self._statuses:
                self._control.settimeout(max(1e-3, end - time.monotonic()))
                try:
                    self._hear()
                except TimeoutError:
                    return None
                finally:
                    self._control.settimeout(None)
            return self._statuses[pid]

    def _hear(self):
        """The pid of a server that was started; None if one has ended."""
        pid, status = json.loads(self._control.recv(MESSAGE))
        if status is None:
            return pid
        self._statuses[pid] = status
        return None


def serve(control):
    """Fork what is asked for, and say how it ended, until nobody asks any more."""
    waited = selectors.DefaultSelector()
    waited.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in waited.select():
            if key.data is not None:
                waited.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(key.data, 0)
                said = [key.data, os.waitstatus_to_exitcode(status)]
                with contextlib.suppress(BrokenPipeError):
                    control.send(json.dumps(said).encode())
            elif asked := control.recv(MESSAGE):
                if (pid := os.fork()) == 0:
                    waited.close()
                    control.close()
                    return json.loads(asked)
                waited.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
                control.send(json.dumps([pid, None]).encode())
            else:
                sys.exit()


def main():
    """In the process that forks, and then in the server."""
    sys.path[:1] = []
    before = {**os.environ}
    for name in MODULES:
        __import__(name)
    # The platform is chosen when it is first asked, and says how workers are started.
    assert sys.modules["vllm.platforms"].current_platform is not None
    imported = {*os.environ.items()} - {*before.items()}
    control = socket.socket(fileno=int(sys.argv[1]))
    arguments, environment, folder, log = serve(control)
    os.setsid()
    os.environ.clear()
    os.environ.update(imported)
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, "")
    sys.argv = ["vllm", *arguments]
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    sys.modules["vllm.entrypoints.cli.main"].main()


if __name__ == "__main__":
    main()
