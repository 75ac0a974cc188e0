"""The command `demo`: see balance scheduling work on this machine, from nothing.

Builds and installs the reference wheel, and serves a model whose prompts take time on a
core with a rank for each core: with balance off and with adaptive in turn. Answers must
be equal, and what it gains is measured and predicted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from balance_tools.demo import ranks
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
from balance_tools.wheel.build import build_wheel
from vllm_balance.cores import usable_cores

POLICIES = ("off", "adaptive")
ROUNDS, PROMPTS = 3, 32
"""Turns of each policy, and requests that each rank gets in a turn."""
BUSY = 0.5
"""Above this load average, before the demo starts anything, other programs run."""


def say(text: str) -> None:
    """Tell the person at the terminal what happens now."""
    print(f"\n==> {text}", flush=True)


def demo(paths: Paths) -> None:
    """Run the whole demonstration; it fails if an answer is not right."""
    folder = paths.build / "demo"
    hidden = what_is_hidden(usable_cores(), ranks.load_average())
    remove_tree(folder)
    folder.mkdir(parents=True)
    say("Building the reference wheel (vLLM, our patches, the reference platform)")
    wheel = build_wheel(paths, Choice(), paths.dist)
    say(f"Installing {wheel.name} into an environment of its own")
    python = make_env(paths, wheel) / "bin" / "python"
    picture = group_requirements(paths.root / "pyproject.toml", "demo")
    pip(python, "install", f"--constraint={paths.root / CONSTRAINTS}", *picture)
    print(f"What programs of others write meanwhile is in {folder}/*.log")
    say(f"Making a mixture of experts of hidden size {ranks.hidden_size()}")
    model = ranks.make_model(python, folder / "models")
    served = ranks.Served(ranks.rank_count())
    clients = ranks.CLIENTS * served.ranks
    load = ranks.drawn(PROMPTS * served.ranks, clients, 400, 24, 0.8)
    say(f"Serving it on {served.ranks} ranks, {ROUNDS} turns with each policy")
    gain = folder / "gain"
    ranks.run_trial(python, gain, model, load, served, POLICIES, ROUNDS)
    print(compare(gain))
    say("What the simulator predicts with the costs that were measured")
    predicted = ranks.predict(python, gain, load, served, POLICIES)
    print(prediction(ranks.report_of(gain), predicted))
    print(epilogue(python, hidden))


def compare(folder: Path, policies: int = len(POLICIES)) -> str:
    """What a trial's turns say of the answers: that they are equal.

    Raises:
        ToolError: They are not.
    """
    turns = sorted(folder.glob("turns/*.json"))
    answers = [json.loads(path.read_text())["generated_texts"] for path in turns]
    for place, (path, found) in enumerate(zip(turns, answers, strict=True)):
        first = place - place % policies  # of the round, whose load is its own
        for number, (answer, other) in enumerate(
            zip(found, answers[first], strict=True)
        ):
            if answer != other:
                raise ToolError(
                    f"{path}: expected answer {number} as in {turns[first].name}, "
                    f"{other!r}, found {answer!r}; this is a defect of the series"
                )
    count = sum(map(len, answers[::policies]))
    names = dict.fromkeys(path.stem.partition("-")[2] for path in turns)
    return f"All {count} answers are equal with {' and '.join(names)}."


def prediction(report: Mapping[str, Any], predicted: Mapping[str, float]) -> str:
    """The gain as it was measured, the costs, and the gain that these predict."""
    ratio = report["policies"]["adaptive"]["ratios"]["mean_e2el_ms"]
    says = predicted["adaptive"] / predicted["off"]
    return (
        f"A full step of {ranks.STEP_TOKENS:,} prompt tokens costs, as learned: "
        f"{ranks.in_words(report['learned_seconds'])}.\n"
        f"A request takes {says:.2f} times as long as with off, says the simulator.\n"
        f"Measured: {ratio['mean']:.2f} ({ratio['low']:.2f} to "
        f"{ratio['high']:.2f} in {ratio['rounds']} turns)."
    )


def what_is_hidden(cores: int, load_average: float) -> str:
    """What a machine with few cores, or a busy one, does not show; else nothing."""
    found = []
    if cores < ranks.FEWEST:
        found.append("there is one core for two ranks, which take turns on it")
    if load_average > BUSY:
        found.append(f"others used the cores before it began ({load_average:.1f})")
    if not found:
        return ""
    return (
        f"Note: {', and '.join(found)}. A rank that waits for another then leaves its "
        "core to somebody,\nso that part of the gain is hidden, and turns differ by "
        "more than policies do.\n"
    )


def epilogue(python: Path, hidden: str) -> str:
    """What was real, and what to try next."""
    command = os.path.relpath(python.parent / "vllm-balance")
    return (
        f"\n{hidden}"
        "Nothing was emulated: each rank computes on a core, and waits for the others "
        "where it must.\nAn NPU differs in all its costs. Next:\n"
        f"  {command} recommend --data-parallel-size 8\n"
        "      your own workload, simulated: docs/simulate.md\n"
        "  docs/operations.md  the same trial on your hardware\n"
        "  docs/results.md     other workloads, and what is not known"
    )


def run(args: argparse.Namespace) -> int:
    """Run `demo`."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    demo(Paths.find())
    return 0
