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
"""Seconds that a server may take to stop, and between checks while it starts."""
TAIL_LINES = 40
RANK = "VLLM::Engine"
"""The beginning of the names of the ranks' processes."""


def refuse_port_in_use(url: str) -> None:
    """Raises `UsageError` if something listens where the server is to listen."""
    parts = urlsplit(url)
    with contextlib.suppress(OSError):
        socket.create_connection((parts.hostname, parts.port), timeout=2).close()
        raise UsageError(
            f"--port {parts.port}: in use, and what answers there would be measured "
            "instead; stop it, or give another port to `vllm serve`."
        )


class Server:
    """A command with all its processes, as a context manager.

    It runs in a new session, so that Ctrl-C does not reach it before we end it. If the
    body fails, the end of the log goes to standard error.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        """Starts nothing: a Ctrl-C during `start` must come in the context's body."""
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
            program = error.filename or self._command[0]
            raise UsageError(f"{program}: {error.strerror}.") from None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, Exception):
            lines = self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            print(f"--- end of {self._log}", *lines, "---", sep="\n", file=sys.stderr)
        if self._process is not None:
            # A second Ctrl-C is delayed until all processes have ended.
            with _uninterrupted():
                self._stop(self._process)

    def refuse_ended(self, when: str = "during the trial") -> None:
        """Raises `UsageError` if the server or one of its ranks has ended."""
        assert self._process is not None, "started"
        ended = ""
        if (status := self._process.poll()) is not None:
            ended = f"the server ended with {status}"
        elif ended_ranks := [rank.pid for rank in self._ranks if not _is_alive(rank)]:
            # Without balance, clients may then wait for ever.
            ended = f"a rank of the server (pid {ended_ranks[0]}) ended"
        if ended:
            raise UsageError(f"{self._log}: {ended} {when}; its log's end is above.")

    def wait_until_ready(self, endpoint: Endpoint, limit_s: float) -> None:
        """Waits until the server answers.

        Raises:
            UsageError: the server ends, or takes longer than `limit_s`.
        """
        start = time.monotonic()
        while problem := endpoint.problem():
            waited = time.monotonic() - start
            self.refuse_ended(f"after {waited:.0f} s, before it was ready")
            if waited > limit_s:
                raise UsageError(
                    f"{self._log}: the server was not ready in {limit_s:g} s; its "
                    f"log's end is above, and what was asked last: {problem}. If it "
                    "only needs longer, give a greater --ready-timeout."
                )
            time.sleep(PAUSE_S)
        assert self._process is not None
        children = self._process.children(recursive=True)
        self._ranks = [child for child in children if child.name().startswith(RANK)]

    def _stop(self, process: psutil.Popen) -> None:
        """Asks all processes to stop, and kills those that do not."""
        processes = [process, *self._ranks]
        with contextlib.suppress(psutil.NoSuchProcess):
            processes += process.children(recursive=True)
            process.terminate()
        _, alive = psutil.wait_procs(processes, timeout=STOP_S)
        for remaining in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                remaining.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whose parent has ended
        psutil.wait_procs(alive, timeout=STOP_S)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delays signals that end us until after the body.

    Handlers do it, because a server would inherit a mask.
    """
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    return False
