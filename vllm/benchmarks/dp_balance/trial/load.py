# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What is sent in a turn: by `vllm bench serve`, or a trace or sessions by us."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..errors import UsageError
from ..requests.arrivals import ClientTraffic
from ..requests.workload import Workload
from . import replay
from .endpoint import Endpoint

VLLM = (
    "import sys; sys.path = [folder for folder in sys.path if folder];"
    "from vllm.entrypoints.cli.main import main; main()"
)
"""Not from the folder in which it runs, which may be a checkout of vLLM."""
WARM_UPS = 8
POLL_S = 0.5


class Load(Protocol):
    """The same in every turn of a round; rounds have other prompts or another order."""

    @property
    def args(self) -> argparse.Namespace:
        """Its options."""

    def send(self, endpoint: Endpoint, result: Path, number: int) -> None:
        """Sends it, and writes a result as `vllm bench serve --save-detailed` does.

        Args:
            endpoint: the server.
            result: the file.
            number: of the round.

        Raises:
            UsageError: it could not be sent.
        """

    def as_simulated(self, result: Path) -> tuple[Workload, ClientTraffic]:
        """What the simulator is to send for a result that was saved."""


def connection(load: Load) -> tuple[dict[str, str], bool]:
    """Headers of each request, and whether certificates count.

    Raises:
        UsageError: a header is none.
    """
    headers = {}
    for text in load.args.header or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--header {name}: give KEY=VALUE.")
        headers[name.strip()] = value.strip()
    return headers, not load.args.insecure


@dataclass(frozen=True)
class BenchServe:
    """Whatever `vllm bench serve` can send."""

    words: Sequence[str]
    """Its options."""
    args: argparse.Namespace
    """The same, as it reads them."""
    show_progress: bool = True

    def send(self, endpoint: Endpoint, result: Path, number: int) -> None:
        """Runs it; what it prints is beside the result."""
        given = {word.partition("=")[0].replace("_", "-") for word in self.words}
        name, root = endpoint.model()
        options = [
            *("--base-url", endpoint.url, "--save-result", "--save-detailed"),
            *("--result-dir", str(result.parent), "--result-filename", result.name),
            *("--seed", str(self.args.seed + number)),
        ]
        if "--model" not in given:
            options += ["--model", root, "--served-model-name", name]
        if "--num-warmups" not in given:
            options += ["--num-warmups", str(WARM_UPS)]
        is_watched = self.show_progress and sys.stderr.isatty()
        if not is_watched:
            options += ["--disable-tqdm"]
        log = result.with_suffix(".log")
        command = [sys.executable, "-c", VLLM, "bench", "serve", *self.words, *options]
        errors = None if is_watched else subprocess.STDOUT
        with (
            log.open("wb") as file,
            subprocess.Popen(command, stdout=file, stderr=errors) as client,
        ):
            try:
                while (status := client.poll()) is None:
                    endpoint.watch()
                    time.sleep(POLL_S)
            except BaseException:
                client.kill()
                raise
        if status or not result.exists():
            said = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
            raise UsageError(
                f"{log}: `vllm bench serve` ended with {status}, last: {said[-1]}"
            )

    def as_simulated(self, result: Path) -> tuple[Workload, ClientTraffic]:
        """The requests that were sent: at their times, unless answers set the pace."""
        concurrency = self.args.max_concurrency
        is_paced = concurrency is not None and self.args.request_rate == float("inf")
        traffic = ClientTraffic(
            concurrency if is_paced else None, self_timed=not is_paced
        )
        return Workload(None, trace=result), traffic


@dataclass(frozen=True)
class Replay:
    """A trace at its own times, or sessions, each request after the answer before."""

    workload: Workload
    traffic: ClientTraffic
    args: argparse.Namespace
    show_progress: bool = True

    def send(self, endpoint: Endpoint, result: Path, number: int) -> None:
        """Sends it from this process."""
        seed = self.args.seed + number
        saved = replay.send(
            endpoint, self.workload, self.traffic, seed, self.show_progress
        )
        result.write_text(json.dumps(saved), encoding="utf-8")

    def as_simulated(self, result: Path) -> tuple[Workload, ClientTraffic]:
        """The same."""
        return self.workload, self.traffic
