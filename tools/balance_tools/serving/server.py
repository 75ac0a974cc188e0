"""A real `vllm serve`: start, wait, ask, read metrics, stop all of it.

For the demo, the benchmarks and the engine tests.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from balance_tools.serving.serve_process import ServeProcess

START_S = 240
"""How long a server may take to answer; a busy machine needs a multiple of 15 s."""

PORT_TAKEN = ("EADDRINUSE", "Address already in use")
"""What a log says when a port was taken between vLLM's choice of it and its use.

vLLM chooses the ports of its process groups among the system's ephemeral ones, seconds
before the engines listen on them; meanwhile any connection may get one.
"""

REQUEST_S = 120
SETTLE_S, SETTLE_PAUSE_S = 60.0, 0.5


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server(ServeProcess):
    """A `vllm serve` with an API server, as a context manager.

    It listens on `address` and `port`, by default a free one of the loopback interface;
    for the rest see `ServeProcess`. If it loses a port at its start (`PORT_TAKEN`), it
    is started once more. On exit all its processes are ended; those that outlive the
    server's own shutdown are killed and reported as a failure. If the body fails, the
    end of the log goes to stderr.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        python: Path | str = sys.executable,
        address: str = "127.0.0.1",
        port: int | None = None,
        enter: Sequence[str] = (),
        name: str | None = None,
        start_limit_s: float | None = None,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://{address}:{self.port}"
        self.model = model
        self.start_s = 0.0
        self._start_limit_s = start_limit_s or START_S
        super().__init__(
            *(folder, name or f"server-{self.port}", model),
            *("--host", address, "--port", str(self.port), *options),
            environment=environment,
            python=python,
            enter=enter,
        )

    def __enter__(self) -> Server:
        self.start()
        try:
            try:
                self.wait_until_ready()
            except RuntimeError as error:
                if not self._lost_a_port():
                    raise
                self.print_log_tail()
                print(f"{error}: a port was taken; once more", file=sys.stderr)
                self.stop()
                self.start()
                self.wait_until_ready()
        except BaseException:
            self.print_log_tail()
            self.stop()
            raise
        return self

    def _lost_a_port(self) -> bool:
        """Whether it ended since another process had one of its ports."""
        log = self.log.read_text(errors="replace")
        return self.exit_status() is not None and any(
            said in log for said in PORT_TAKEN
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.print_log_tail()
        left = self.stop()
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
        """Several Prometheus samples, each as by `metric`.

        The front-end writes them in a thread while it goes on counting: a report that
        comes meanwhile is in those written last and not in those written first.
        """
        text = requests.get(f"{self.url}/metrics", timeout=REQUEST_S).text
        values: list[dict[int, float]] = [defaultdict(float) for _ in names]
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in names and labels.items() <= sample.labels.items():
                    engine = int(sample.labels["engine"])
                    values[names.index(sample.name)][engine] += sample.value
        return [dict(value) for value in values]

    def settled_metrics(self, *names: str) -> list[dict[int, float]]:
        """As `metrics`, once the ranks have stopped: their steps outlast the answers.

        Raises:
            RuntimeError: they still step after a minute without requests.
        """
        before = None
        for _ in range(int(SETTLE_S / SETTLE_PAUSE_S)):
            now = self.metrics(*names)
            if now == before:
                return now
            before = now
            time.sleep(SETTLE_PAUSE_S)
        raise RuntimeError(
            f"{self.url}/metrics: expected {', '.join(names)} to stand still without "
            f"requests, found them changing for {SETTLE_S:.0f} s; see {self.log}"
        )

    def forget_prefixes(self) -> None:
        """Empty the prefix cache of every rank."""
        assert self.post("/reset_prefix_cache").status_code == 200

    def wait_until_ready(self) -> None:
        """Wait until it answers.

        Raises:
            RuntimeError: it exits or takes too long.
        """
        start = time.monotonic()
        said = 0.0
        while True:
            waited = time.monotonic() - start
            if (status := self.exit_status()) is not None:
                raise RuntimeError(
                    f"{self.log}: the server exited with {status} "
                    f"after {waited:.0f} s, before it was ready"
                )
            with contextlib.suppress(requests.ConnectionError, requests.Timeout):
                if requests.get(f"{self.url}/health", timeout=5).ok:
                    self.start_s = waited
                    return
            if waited > self._start_limit_s:
                raise RuntimeError(
                    f"{self.log}: the server was not ready in {self._start_limit_s:g} s"
                )
            if waited - said >= 10:
                said = waited
                print(f"waiting for vllm serve: {waited:.0f} s", file=sys.stderr)
            time.sleep(0.1)
