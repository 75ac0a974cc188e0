"""The command `demo`: see balance scheduling work on this machine, from nothing.

Builds and installs the reference wheel. A real tiny model on two ranks then shows that
balance changes no answer, and a trial on the emulated device with four ranks what it
gains.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from balance_tools.distribution import Choice
from balance_tools.environment.reference import (
    CONSTRAINTS,
    group_requirements,
    make_env,
    pip,
)
from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.paths import Paths
from balance_tools.run import tail_of, to_log
from balance_tools.wheel.build import build_wheel

# Few slots, so that ranks fill up and the gate has something to decide.
FEW_SLOTS = (
    *("--data-parallel-size", "2", "--max-num-seqs", "4"),
    *("--max-num-batched-tokens", "256", "--max-model-len", "1024"),
)
QUESTIONS = (
    *("--rounds", "1", "--dataset-name", "random", "--random-input-len", "60"),
    *("--random-output-len", "24", "--random-range-ratio", "0.5"),
    *("--num-prompts", "24", "--max-concurrency", "24", "--temperature", "0"),
)
DEVICE = {"t0": 0.05, "a": 0.001, "b": 0.0005, "c": 0.04}
"""Seconds of a step of the emulated device: t0 always, a for each request that decodes,
b for each prompt token of the fullest rank, c if any rank has a prompt."""
FOUR_RANKS = (
    *("--data-parallel-size", "4", "--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "512", "--max-model-len", "4096"),
    *("--no-enable-prefix-caching", "--no-async-scheduling"),
    *("--additional-config", json.dumps({"emulated_device": DEVICE})),
)
# A load that keeps all slots in use.
LOAD = (
    *("--rounds", "3", "--dataset-name", "random", "--random-input-len", "400"),
    *("--random-output-len", "60", "--random-range-ratio", "0.4"),
    *("--num-prompts", "64", "--max-concurrency", "32"),
)


def say(text: str) -> None:
    """Tell the person at the terminal what happens now."""
    print(f"\n==> {text}", flush=True)


def demo(paths: Paths) -> None:
    """Run the whole demonstration; it fails if an answer is not right."""
    folder = paths.build / "demo"
    remove_tree(folder)
    folder.mkdir(parents=True)
    say("Building the reference wheel (vLLM, our patches, the reference platform)")
    wheel = build_wheel(paths, Choice(), paths.dist)
    say(f"Installing {wheel.name} into an environment of its own")
    python = make_env(paths, wheel) / "bin" / "python"
    picture = group_requirements(paths.root / "pyproject.toml", "demo")
    pip(python, "install", f"--constraint={paths.root / CONSTRAINTS}", *picture)
    print(f"What programs of others write meanwhile is in {folder}/*.log")
    say("1 of 2: the same answers. A tiny model with random weights, on two ranks")
    model = tiny_model(python, folder / "models")
    run_trial(python, folder / "answers", model, QUESTIONS, FEW_SLOTS, is_shown=False)
    print(compare(folder / "answers"))
    say("2 of 2: the gain. Four ranks on an emulated device, three turns of each")
    run_trial(python, folder / "gain", model, LOAD, FOUR_RANKS)
    print(epilogue(python))


def tiny_model(python: Path, folder: Path) -> Path:
    """A tiny mixture of experts with random weights.

    Raises:
        ToolError: it could not be made.
    """
    model, log = folder / "moe", folder.with_suffix(".log")
    arguments = ("-m", "vllm_balance.reference.tiny_models", "--model", "moe")
    # Not from a checkout, whose vllm would be imported.
    command = [python, *arguments, "--out", folder.resolve()]
    if to_log(command, log, cwd=folder.parent) != 0:
        raise ToolError(f"{log}: expected a model, found {tail_of(log)}; read the log")
    return model


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_trial(
    python: Path,
    folder: Path,
    model: Path,
    words: Sequence[str],
    served: Sequence[str],
    is_shown: bool = True,
) -> None:
    """Run `vllm bench dp-balance trial`, whose servers have a port of their own.

    Args:
        python: of an environment with the reference wheel.
        folder: gets the turns and the report.
        model: what is served.
        words: options of the trial and of the load.
        served: options of `vllm serve`.
        is_shown: whether the terminal gets what it says, else the log.

    Raises:
        ToolError: it did not end well.
    """
    log = folder.with_suffix(".log")
    programs = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [
        *(str(python.parent / "vllm"), "bench", "dp-balance", "trial"),
        *("--result-dir", str(folder.resolve()), *words),
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
            stdout=None if is_shown else errors,
            stderr=errors,
        )
    if status:
        raise ToolError(
            f"{log}: expected the trial to end well, found exit status {status}: "
            f"{tail_of(log)}; if the machine was busy, run this again when it is not"
        )


def compare(folder: Path) -> str:
    """What a trial's turns say of the answers: that they are equal.

    Raises:
        ToolError: They are not.
    """
    turns = sorted(folder.glob("turns/*.json"))
    answers = [json.loads(path.read_text())["generated_texts"] for path in turns]
    for path, found in zip(turns, answers, strict=True):
        for number, (answer, first) in enumerate(zip(found, answers[0], strict=True)):
            if answer != first:
                raise ToolError(
                    f"{path}: expected answer {number} as in {turns[0].name}, "
                    f"{first!r}, found {answer!r}; this is a defect of the series"
                )
    names = " and ".join(path.stem.partition("-")[2] for path in turns)
    return f"All {len(answers[0])} answers are equal with {names}."


def epilogue(python: Path) -> str:
    """What was emulated, and what to try next."""
    vllm = os.path.relpath(python.parent / "vllm")
    return (
        "\nA machine that is busy or has few cores hides part of the gain.\n"
        f"Emulated: how long a step takes on the device ({DEVICE['t0'] * 1000:.0f} ms, "
        f"{DEVICE['a'] * 1000:.0f} ms a decode, {DEVICE['b'] * 1000:.1f} ms a prompt\n"
        f"token, {DEVICE['c'] * 1000:.0f} ms if there is any), and its tokens. Real: "
        "server, API, ranks, scheduler, gate and client.\n\n"
        "Next:\n"
        f"  {vllm} bench dp-balance recommend --data-parallel-size 8\n"
        "      your own workload, simulated: docs/simulate.md\n"
        "  docs/operations.md  the same trial on your hardware\n"
        "  docs/results.md     other workloads, and what is not known"
    )


def run(args: argparse.Namespace) -> int:
    """Run `demo`."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    demo(Paths.find())
    return 0
