# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A server of a trial: starts it, waits until it answers, and ends all of it.

`vllm.benchmarks.sweep.server` kills its server at once and keeps no log: device memory
may then still be in use when the next one starts.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from ..errors import UsageError
from ..server_api import Endpoint

STOP_S, PAUSE_S = 60.0, 0.25
"""How long a server may take to stop, and between two looks."""
TAIL_LINES = 40
RANK = "VLLM::Engine"
"""What the names of the ranks' processes begin with."""


def refuse_port_in_use(url: str) -> None:
    """Looks whether anybody listens where the server is to listen.

    Raises:
        UsageError: somebody does.
    """
    parts = urlsplit(url)
    with contextlib.suppress(OSError):
        socket.create_connection((parts.hostname, parts.port), timeout=2).close()
        raise UsageError(
            f"--port {parts.port}: in use, and what answers there would be measured "
            "instead; stop it, or give another port to `vllm serve`."
        )


class Server:
    """A command with all its processes, as a context manager.

    It has a session of its own, so that Ctrl-C does not reach it before we end it. If
    the body fails, the end of the log goes to standard error.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        """Does not start it yet: a Ctrl-C while it starts must find it in the body.

        Args:
            command: its words.
            log: gets what it writes.
            environment: its variables.
        """
        self._command, self._log, self._environment = command, log, environment
        self._process: psutil.Popen | None = None
        self._ranks: list[psutil.Process] = []

    def __enter__(self) -> "Server":
        return self

    def start(self) -> None:
        """Starts its command.

        Raises:
            UsageError: there is no such command.
        """
        try:
            with self._log.open("wb") as log, _uninterrupted():
                self._process = psutil.Popen(
                    self._command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            what = error.filename or self._command[0]
            raise UsageError(f"{what}: {error.strerror}.") from None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, Exception):
            lines = self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            print(f"--- end of {self._log}", *lines, "---", sep="\n", file=sys.stderr)
        if self._process is not None:
            # A second Ctrl-C comes when nothing is left behind.
            with _uninterrupted():
                self._stop(self._process)

    def refuse_ended(self, when: str = "during the trial") -> None:
        """Looks whether it still runs, with all its ranks.

        Raises:
            UsageError: it does not.
        """
        assert self._process is not None, "started"
        ended = ""
        if (status := self._process.poll()) is not None:
            ended = f"the server ended with {status}"
        elif gone := [rank.pid for rank in self._ranks if not _is_alive(rank)]:
            # Without balance clients may wait for ever then.
            ended = f"a rank of the server (pid {gone[0]}) ended"
        if ended:
            raise UsageError(f"{self._log}: {ended} {when}; its log's end is above.")

    def wait_until_ready(self, endpoint: Endpoint, limit_s: float) -> None:
        """Waits until it answers, once it was started.

        Raises:
            UsageError: it ends, or takes longer than `limit_s`.
        """
        start = time.monotonic()
        while why := endpoint.problem():
            waited = time.monotonic() - start
            self.refuse_ended(f"after {waited:.0f} s, before it was ready")
            if waited > limit_s:
                raise UsageError(
                    f"{self._log}: the server was not ready in {limit_s:g} s; its "
                    f"log's end is above, and what was asked last: {why}. If it only "
                    "needs longer, give a greater --ready-timeout."
                )
            time.sleep(PAUSE_S)
        assert self._process is not None
        children = self._process.children(recursive=True)
        self._ranks = [each for each in children if each.name().startswith(RANK)]

    def _stop(self, process: psutil.Popen) -> None:
        """Asks it to stop, and kills what is left."""
        processes = [process, *self._ranks]
        with contextlib.suppress(psutil.NoSuchProcess):
            processes += process.children(recursive=True)
            process.terminate()
        _, left = psutil.wait_procs(processes, timeout=STOP_S)
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whose parent has ended
        psutil.wait_procs(left, timeout=STOP_S)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals that end us come after the body. A server would inherit a mask."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    return False
