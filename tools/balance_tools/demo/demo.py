"""The command `demo`: see balance scheduling work on this machine, from nothing.

Builds and installs the reference wheel. A real tiny model on two ranks then shows that
balance changes no answer, and a trial on the emulated device with four ranks what it
gains.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from balance_tools.demo.emulated import ALL_SLOTS, DEVICE, run_trial, serve
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
    *("--dataset-name", "random", "--random-input-len", "60"),
    *("--random-output-len", "24", "--random-range-ratio", "0.5"),
    *("--num-prompts", "24", "--max-concurrency", "24", "--temperature", "0"),
)
REQUESTS, ROUNDS = 64, 3


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
    run_trial(
        python, folder / "answers", model, ["--rounds", "1", *QUESTIONS], FEW_SLOTS
    )
    print(compare(folder / "answers"))
    say("2 of 2: the gain. Four ranks on an emulated device, three turns of each")
    load = [*ALL_SLOTS, "--num-prompts", str(REQUESTS), "--rounds", str(ROUNDS)]
    run_trial(python, folder / "gain", model, load, serve())
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
