"""A real `vllm serve`: start, wait, ask, read metrics, stop all of it.

For the demo, the benchmarks and the engine tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import requests
from prometheus_client.parser import text_string_to_metric_families

START_S = 150
"""How long a server may take to answer; a busy machine needs a multiple of 15 s."""

STOP_S = 30
"""How long it may take to stop."""

FOLLOW_S = 5
"""How much longer its other processes may live than the first."""

REQUEST_S = 120
LOG_TAIL_LINES = 60


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """`vllm serve MODEL OPTIONS` as a context manager, with one API server.

    `python` is the interpreter of the environment in which vllm is installed.
    `folder` gets the log and is the working directory: the server must import the
    installed packages, not a source tree. On exit the whole process group is ended;
    processes that outlive the server's own shutdown are killed and reported as an
    AssertionError. If the body fails, the end of the log goes to stderr.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        python: Path | str = sys.executable,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"server-{self.port}.log"
        self.model = model
        self.start_s = 0.0
        self.memory_bytes = 0
        self._folder = folder
        self._command = [
            *(str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
            *("--host", "127.0.0.1", "--port", str(self.port)),
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

    def __enter__(self) -> Server:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group of its own
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._print_log_tail()
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._print_log_tail()
        self.memory_bytes = self._memory()
        left = self._stop()
        if error is None:
            assert not left, f"{self.log}: the server left processes behind: {left}"

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int | Sequence[int],
        concurrency: int = 1,
        **sampling: Any,
    ) -> list[list[int]]:
        """The greedy tokens of prompts of token ids, through /v1/completions."""
        if isinstance(max_tokens, int):
            max_tokens = [max_tokens] * len(prompts)
        with ThreadPoolExecutor(concurrency) as pool:
            futures = [
                pool.submit(self.completion, list(prompt), limit, **sampling)
                for prompt, limit in zip(prompts, max_tokens, strict=True)
            ]
            return [future.result() for future in futures]

    def completion(
        self, prompt: list[int] | str, max_tokens: int, **sampling: Any
    ) -> list[int]:
        """The new tokens of one prompt; by default greedy and of full length."""
        body = {
            "model": str(self.model),
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **sampling,
        }
        response = self.post("/v1/completions", body)
        assert response.status_code == 200, response.text
        tokens: list[int] = response.json()["choices"][0]["token_ids"]
        return tokens

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """POST a JSON body; the response, whatever its status."""
        return requests.post(self.url + path, json=body, timeout=REQUEST_S)

    def metric(self, name: str, **labels: str) -> dict[int, float]:
        """A Prometheus sample by engine (data-parallel rank), summed over the rest.

        Only samples with these values of `labels` count.
        """
        return self.metrics(name, **labels)[0]

    def metrics(self, *names: str, **labels: str) -> list[dict[int, float]]:
        """Several Prometheus samples of one moment, each as by `metric`."""
        text = requests.get(f"{self.url}/metrics", timeout=REQUEST_S).text
        values: list[dict[int, float]] = [defaultdict(float) for _ in names]
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in names and labels.items() <= sample.labels.items():
                    engine = int(sample.labels["engine"])
                    values[names.index(sample.name)][engine] += sample.value
        return [dict(value) for value in values]

    def forget_prefixes(self) -> None:
        """Empty the prefix cache of every rank."""
        assert self.post("/reset_prefix_cache").status_code == 200

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        start = time.monotonic()
        said = 0.0
        while True:
            waited = time.monotonic() - start
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"{self.log}: the server exited with {self._process.returncode} "
                    f"after {waited:.0f} s, before it was ready"
                )
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(f"{self.url}/health", timeout=5).ok:
                    self.start_s = waited
                    return
            if waited > START_S:
                raise RuntimeError(
                    f"{self.log}: the server was not ready in {START_S} s"
                )
            if waited - said >= 10:
                said = waited
                print(f"waiting for vllm serve: {waited:.0f} s", file=sys.stderr)
            time.sleep(0.1)

    def _processes(self) -> list[psutil.Process]:
        """The server's processes that are alive: its group, and its descendants."""
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

    def _memory(self) -> int:
        """Bytes of memory of the server, shared pages counted once."""
        total = 0
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    def _stop(self) -> list[str]:
        """End every process; the names of those that had to be killed."""
        assert self._process is not None
        processes = self._processes()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        # If it does not stop in time, it counts as left behind, below.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        psutil.wait_procs(processes, timeout=FOLLOW_S)
        left = [p for p in {*processes, *self._processes()} if _alive(p)]
        names = []
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                names.append(f"{process.pid} {process.name()}")
                process.kill()
        psutil.wait_procs(left, timeout=STOP_S)
        self._process.wait(STOP_S)
        return names

    def _print_log_tail(self) -> None:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        print(f"--- end of {self.log}", *lines, sep="\n", file=sys.stderr)


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
