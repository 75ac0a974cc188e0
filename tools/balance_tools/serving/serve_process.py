"""One `vllm serve` with all its processes: start it, and end all of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

STOP_S = 30
"""How long it may take to stop."""

FOLLOW_S = 5
"""How much longer its other processes may live than the first."""

LOG_TAIL_LINES = 60


class ServeProcess:
    """`vllm serve MODEL OPTIONS`, which may be headless.

    `python` is the interpreter of the environment in which vllm is installed.
    `folder` gets the log, `name`.log, and is the working directory: the server must
    import the installed packages, not a source tree. `enter` goes before the command,
    to start it elsewhere on this machine: `nsenter …`.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        model: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        python: Path | str = sys.executable,
        enter: Sequence[str] = (),
    ) -> None:
        self.log = folder / f"{name}.log"
        self._folder = folder
        self._command = [
            *enter,
            *(str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
            *options,
        ]
        self._environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and do not wait."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group of its own
            )

    def exit_status(self) -> int | None:
        """What its first process exited with; None while that runs."""
        assert self._process is not None
        return self._process.poll()

    def wait(self, timeout: float) -> int:
        """The exit status, when it has ended by itself with all its processes.

        Raises:
            AssertionError: names those that live after `timeout` seconds.
        """
        assert self._process is not None
        _, alive = psutil.wait_procs(self.processes(), timeout=timeout)
        names = [process.name() for process in alive if _alive(process)]
        assert not names, f"{self.log}: still there after {timeout:g} s: {names}"
        return self._process.wait(FOLLOW_S)

    def kill(self) -> None:
        """End every process at once, as a power failure does."""
        processes = self.processes()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=STOP_S)

    def stop(self) -> list[str]:
        """Ask it to stop; the names of its processes that had to be killed."""
        assert self._process is not None
        processes = self.processes()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        # If it does not stop in time, it counts as left behind, below.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        psutil.wait_procs(processes, timeout=FOLLOW_S)
        left = [p for p in {*processes, *self.processes()} if _alive(p)]
        names = []
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                names.append(f"{process.pid} {process.name()}")
                process.kill()
        psutil.wait_procs(left, timeout=STOP_S)
        self._process.wait(STOP_S)
        return names

    def processes(self) -> list[psutil.Process]:
        """Its processes that are alive: its group, and its descendants."""
        assert self._process is not None
        found: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                found[child.pid] = child
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(process.pid) == self._process.pid:
                    found[process.pid] = process
        return [p for p in found.values() if _alive(p)]

    def print_log_tail(self) -> None:
        """The end of the log, to stderr."""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        print(f"--- end of {self.log}", *lines, sep="\n", file=sys.stderr)


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
