"""Trials on the emulated device: for the demo, and the wall clocks in bench/."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.run import tail_of

RANKS, SLOTS, MAX_TOKENS = 4, 8, 512
DEVICE = {"t0": 0.05, "a": 0.001, "b": 0.0005, "c": 0.04}
"""Seconds of a step of the emulated device: t0 always, a for each request that decodes,
b for each prompt token of the fullest rank, c if any rank has a prompt."""
ALL_SLOTS = (
    *("--dataset-name", "random", "--random-input-len", "400"),
    *("--random-output-len", "60", "--random-range-ratio", "0.4"),
    *("--max-concurrency", str(RANKS * SLOTS)),
)
"""A load that keeps all slots in use."""


def serve(ranks: int = RANKS, **device: float) -> list[str]:
    """Options of `vllm serve`: on the emulated device, with these constants."""
    emulated = json.dumps({"emulated_device": {**DEVICE, **device}})
    return [
        *("--data-parallel-size", str(ranks), "--max-num-seqs", str(SLOTS)),
        *("--max-num-batched-tokens", str(MAX_TOKENS)),
        *("--max-model-len", "4096", "--no-enable-prefix-caching"),
        *("--no-async-scheduling", "--additional-config", emulated),
    ]


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_trial(
    python: Path, folder: Path, model: Path, words: Sequence[str], served: Sequence[str]
) -> None:
    """Run `vllm bench dp-balance trial`, whose servers have a port of their own.

    Args:
        python: of an environment with the reference wheel.
        folder: gets the turns and the report; a trial that was stopped there goes on.
        model: what is served.
        words: options of the trial and of the load.
        served: options of `vllm serve`.

    Raises:
        ToolError: it did not end well.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    programs = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [
        *(str(python.parent / "vllm"), "bench", "dp-balance", "trial"),
        *("--result-dir", folder.name, *words),
        *("--", "vllm", "serve", str(model.resolve()), "--host", "127.0.0.1"),
        *("--port", str(free_port()), *served),
    ]
    # Libraries that the client loads write pages at its end.
    with log.open("ab") as errors:
        status = subprocess.call(
            command,
            cwd=folder.parent,
            env={
                **os.environ,
                **quiet,
                "PATH": programs,
                "VLLM_LOGGING_LEVEL": "ERROR",
            },
            stderr=errors,
        )
    if status:
        raise ToolError(
            f"{log}: expected the trial to end well, found exit status {status}: "
            f"{tail_of(log)}; if the machine was busy, run this again when it is not"
        )
