# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The server of a turn: starts it, waits until it answers, and ends all of it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from ..errors import UsageError
from .endpoint import Endpoint

STOP_S, FOLLOW_S, PAUSE_S = 60.0, 5.0, 0.25
"""How long a server may take to stop, its other processes longer than the first, and
between two looks."""
TAIL_LINES = 40
RANK = "VLLM::Engine"
"""What the names of the ranks' processes begin with."""
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        """Does not start it yet.

        Args:
            command: its words.
            log: gets what it writes.
            environment: its variables.
        """
        self._command, self._log = command, log
        self._environment = environment
        self._known: dict[int, psutil.Process] = {}
        self._ranks: list[psutil.Process] = []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Server":
        return self

    def start(self) -> None:
        """Starts it.

        Raises:
            UsageError: it cannot be.
        """
        try:
            # Ctrl-C between the start and our knowing of it would leave it behind.
            with self._log.open("wb") as log, _deferred_interrupts():
                self._process = subprocess.Popen(
                    self._command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise UsageError(f"{self._command[0]}: {error.strerror}.") from None

    def __exit__(self, kind: object, error: object, trace: Any) -> None:
        if self._process is None:
            return
        if isinstance(error, Exception):
            lines = self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            print(f"--- end of {self._log}", *lines, "---", sep="\n", file=sys.stderr)
        with _deferred_interrupts():
            self._stop(self._process)

    def refuse_ended(self, when: str = "during its turn") -> None:
        """Looks whether it still runs, with all its ranks.

        Raises:
            UsageError: it does not.
        """
        ended = ""
        assert self._process is not None
        if (status := self._process.poll()) is not None:
            ended = f"the server ended with {status}"
        elif gone := [rank.pid for rank in self._ranks if not _is_alive(rank)]:
            # Without balance clients may wait for ever then.
            ended = f"a rank of the server (pid {gone[0]}) ended"
        if ended:
            raise UsageError(f"{self._log}: {ended} {when}; its log's end is above.")

    def wait_until_ready(self, endpoint: Endpoint, limit_s: float) -> None:
        """Waits until it answers.

        Raises:
            UsageError: it ends, or takes longer than `limit_s`.
        """
        start = time.monotonic()
        while not endpoint.answers():
            waited = time.monotonic() - start
            self.refuse_ended(f"after {waited:.0f} s, before it was ready")
            if waited > limit_s:
                raise UsageError(
                    f"{self._log}: the server was not ready in {limit_s:g} s; its "
                    "log's end is above. If it only needs longer, give a greater "
                    "--ready-timeout."
                )
            time.sleep(PAUSE_S)
        self._ranks = [p for p in self._processes() if p.name().startswith(RANK)]

    def _stop(self, first: "subprocess.Popen[bytes]") -> None:
        """Asks it to stop, and kills what is left."""
        self._processes()
        first.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.wait(STOP_S)
        psutil.wait_procs(self._processes(), timeout=FOLLOW_S)
        left = self._processes()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=STOP_S)
        first.wait(STOP_S)

    def _processes(self) -> list[psutil.Process]:
        """Those alive of its group, its descendants, and what was one of them."""
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                self._known.setdefault(child.pid, child)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(process.pid) == self._process.pid:
                    self._known.setdefault(process.pid, process)
        return [process for process in self._known.values() if _is_alive(process)]


@contextlib.contextmanager
def _deferred_interrupts() -> Iterator[None]:
    """What would interrupt comes at the end. A child does not inherit that."""
    came: list[int] = []
    before = {s: signal.signal(s, lambda n, _: came.append(n)) for s in INTERRUPTS}
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
