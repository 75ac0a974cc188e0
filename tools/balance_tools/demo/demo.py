"""The command `demo`: builds, serves and compares off and adaptive on this machine.

It builds and installs the reference wheel, and serves a model with a rank for each
core. One load goes on for six minutes, and the policy is switched between off and
adaptive. Answers must be equal, and the gain is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

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
MINUTES, PROMPTS = 6.0, 64
"""The longest trial, and requests of the load, which are sent again when all were.

In each answer the best next token is ahead of the second by 3e-4 in log-probability or
more. Of 256 requests one has a lead of 1e-6, so that its answer depends on how sums are
rounded, and that on what else is in the step, also with plain vLLM.
"""
BUSY = 0.5
"""A load average above this at the start means that other programs run."""


def say(text: str) -> None:
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
    load = ranks.drawn(PROMPTS, ranks.CLIENTS * served.ranks, 400, 24, 0.8)
    say(f"Serving it on {served.ranks} ranks, whose policy is switched under one load")
    gain = folder / "gain"
    ranks.run_trial(python, gain, model, load, served, POLICIES, MINUTES)
    print(compare(gain))
    print(epilogue(python, hidden))


def compare(folder: Path) -> str:
    """A sentence that equal requests of a trial have equal answers.

    Raises:
        ToolError: they have not.
    """
    path, digests = folder / "answers.json", dict[int, set[str]]()
    answers = json.loads(path.read_text())
    for request, _, _, digest in answers:
        digests.setdefault(request, set()).add(digest)
    if several := [request for request, hashes in digests.items() if len(hashes) > 1]:
        raise ToolError(
            f"{path}: expected one answer to each request, found several to {several}; "
            "no rounding explains that, so that it is a defect of the series"
        )
    repeats = len(answers) - len(digests)
    return f"{repeats} requests were sent again, and had the same answers as before."


def what_is_hidden(cores: int, load_average: float) -> str:
    """A note on what few cores, or other programs, hide; may be empty."""
    reasons = []
    if cores < ranks.FEWEST:
        reasons.append("there is one core for two ranks, which take turns on it")
    if load_average > BUSY:
        reasons.append(f"others used the cores before it began ({load_average:.1f})")
    if not reasons:
        return ""
    return (
        f"Note: {', and '.join(reasons)}. A rank that waits for another then leaves "
        "its core to somebody,\nso that part of the gain is hidden, and stretches "
        "differ by more.\n"
    )


def epilogue(python: Path, hidden: str) -> str:
    """A text on what was measured, and what to try next."""
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
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    demo(Paths.find())
    return 0
