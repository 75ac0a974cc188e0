"""The command `demo`: see balance scheduling work on this machine, from nothing.

Builds and installs the reference wheel. A real tiny model on two ranks then shows that
balance changes no answer, and the emulated device with four ranks what it gains.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from balance_tools.demo.load import (
    DEVICE,
    POLICIES,
    STEADY,
    Run,
    answers,
    call,
    compare,
    measure,
    waiting_share,
)
from balance_tools.demo.picture import plot
from balance_tools.distribution import Choice
from balance_tools.environment.reference import make_env
from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.paths import Paths
from balance_tools.wheel.build import build_wheel

FIGURES = (
    ("output tokens per second", STEADY, 1.0, ".0f"),
    ("the same, to the last answer", "output_throughput", 1.0, ".0f"),
    ("ms between tokens (mean TPOT)", "mean_tpot_ms", 1.0, ".0f"),
    ("seconds a request takes (mean)", "mean_e2el_ms", 1e-3, ".1f"),
    ("seconds to first token (p50)", "median_ttft_ms", 1e-3, ".2f"),
    ("seconds to first token (p99)", "p99_ttft_ms", 1e-3, ".2f"),
)
"""Of the table: title, name in the result, scale and format."""


def say(text: str) -> None:
    """Tell the person at the terminal what happens now."""
    print(f"\n==> {text}", flush=True)


def demo(paths: Paths) -> None:
    """Run the whole demonstration; it fails if an answer or the gate is not right."""
    folder = paths.build / "demo"
    remove_tree(folder)
    folder.mkdir(parents=True)
    say("Building the reference wheel (vLLM, our patches, the reference platform)")
    wheel = build_wheel(paths, Choice(), paths.dist)
    say(f"Installing {wheel.name} into an environment of its own")
    python = make_env(paths, wheel) / "bin" / "python"
    say("1 of 2: the same answers. A tiny model with random weights, on two ranks")
    models = ("-m", "vllm_balance.reference.tiny_models", "--model", "moe")
    call(folder, python, *models, "--out", str(folder / "models"))
    (model,) = (folder / "models").iterdir()
    compare({policy: answers(python, folder, model, policy) for policy in POLICIES})
    say("2 of 2: the gain. Four ranks on an emulated device, a minute for each policy")
    runs = []
    for policy in POLICIES:
        (folder / policy).mkdir()
        print(f"vllm serve --data-parallel-size 4 --data-parallel-balance {policy} …")
        runs.append(measure(python, folder / policy, model, policy))
    picture = plot(runs, folder / "demo.png")
    say(f"The same {runs[0].bench['completed']} requests, balance off and adaptive")
    print(table(runs))
    print(f"\n{verdict(runs)}\n\nPicture: {picture}\n\n{epilogue(python)}")


def table(runs: Sequence[Run]) -> str:
    """The figures of every run side by side, and the change to the first."""
    rows: list[tuple[str, list[float], str]] = [
        (title, [run.bench[name] * scale for run in runs], form)
        for title, name, scale, form in FIGURES
    ]
    waits = [waiting_share(run.steps) for run in runs]
    held = [sum(run.held_steps.values()) for run in runs]
    rows.append(("ranks wait for the slowest", waits, ".0%"))
    rows.append(("steps that held a prompt", held, ".0f"))
    lines = [f"{'':32}" + "".join(f"{run.policy:>12}" for run in runs)]
    for title, values, form in rows:
        cells = "".join(f"{format(v, form):>12}" for v in values)
        is_ratio = form != ".0%" and values[0]
        change = f"{values[-1] / values[0] - 1:>+10.0%}" if is_ratio else ""
        lines.append(f"{title:32}{cells}{change}")
    return "\n".join(lines)


def verdict(runs: Sequence[Run]) -> str:
    """What the figures say."""
    off, on = runs[0], runs[-1]
    gain = on.bench[STEADY] / off.bench[STEADY]
    price = on.bench["median_ttft_ms"] / off.bench["median_ttft_ms"]
    return (
        f"{on.policy}: {gain:.2f} times the tokens per second of {off.policy}, and "
        f"{price:.1f} times the median time to the first token.\n"
        "A machine that is busy or has few cores hides part of the gain."
    )


def epilogue(python: Path) -> str:
    """What was emulated, and what to try next."""
    vllm = os.path.relpath(python.parent / "vllm")
    return (
        f"Emulated: how long a step takes on the device ({DEVICE['t0'] * 1000:.0f} ms, "
        f"{DEVICE['a'] * 1000:.0f} ms a decode, {DEVICE['b'] * 1000:.1f} ms a prompt\n"
        f"token, {DEVICE['c'] * 1000:.0f} ms if there is any), and its tokens. Real: "
        "server, API, ranks, scheduler, gate and client.\n\n"
        "Next:\n"
        f"  {vllm} bench dp-balance recommend --data-parallel-size 8\n"
        "      your own workload, simulated: docs/simulate.md\n"
        "  docs/results.md     other workloads, and what is not known\n"
        "  docs/operations.md  how to try it on a cluster, and how to go back"
    )


def run(args: argparse.Namespace) -> int:
    """Run `demo`."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        demo(Paths.find())
    except (RuntimeError, AssertionError) as error:
        # Of a server that did not start in time, or did not end.
        raise ToolError(
            f"{error}; the end of its log is above. If the machine was busy, run this "
            "again when it is not"
        ) from None
    return 0
