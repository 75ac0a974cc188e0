"""The command `demo`: see balance scheduling work on this machine, from nothing.

Builds and installs the reference wheel, serves a tiny MoE model on two data parallel
ranks, first with balance off and then on, and sends both the same requests.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from openai import OpenAI

from balance_tools.distribution import Choice
from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.paths import Paths
from balance_tools.run import tail_of, to_log
from balance_tools.serving.demo_plot import plot
from balance_tools.serving.demo_watch import Run, watch
from balance_tools.serving.env import make_env
from balance_tools.serving.server import Server
from balance_tools.wheel.build import build_wheel

RANKS = 2
POLICIES = ("off", "cap")
SERVE = (
    *("--data-parallel-size", str(RANKS)),
    *("--api-server-count", "1"),
    # Few slots, so that ranks fill up and the gate has something to decide.
    *("--max-num-seqs", "4"),
    *("--max-num-batched-tokens", "256"),
    *("--max-model-len", "1024"),
)
BENCH = (
    *("--dataset-name", "random", "--seed", "1"),
    *("--random-input-len", "200", "--random-output-len", "40"),
    *("--random-range-ratio", "0.5"),
    *("--num-prompts", "72", "--max-concurrency", "16", "--ignore-eos"),
)
QUESTIONS = ("Why do ranks wait?", "What is a wave?", "Who admits a prefill?")


def say(text: str) -> None:
    """Tell the person at the terminal what happens now."""
    print(f"\n==> {text}", flush=True)


def demo(paths: Paths) -> None:
    """Run the whole demonstration; it fails if the gate did not act."""
    folder = paths.build / "demo"
    remove_tree(folder)
    folder.mkdir(parents=True)
    say("Building the reference wheel (vLLM, our patches, the reference platform)")
    wheel = build_wheel(paths, Choice(), paths.dist)
    say(f"Installing {wheel.name} into an environment of its own")
    python = make_env(paths, wheel) / "bin" / "python"
    say("Making a tiny Qwen3-MoE model with random weights")
    models = ("-m", "vllm_balance.reference.tiny_models", "--model", "moe")
    _call(folder, python, *models, "--out", str(folder / "models"))
    (model,) = (folder / "models").iterdir()
    runs = [_serve(python, folder, model, policy) for policy in POLICIES]
    picture = plot(runs, folder / "demo.png")
    _print_table(runs)
    print(f"\nThe gate acted; see the last line of the table.\nPicture: {picture}\n")
    print(
        "What this shows: the real engine, scheduler and gate at work. What it does\n"
        "not show: a speed-up. A tiny model on a CPU has no cost worth balancing, and\n"
        "the two ranks share this machine's cores."
    )


def _serve(python: Path, folder: Path, model: Path, policy: str) -> Run:
    options = (*SERVE, "--data-parallel-balance", policy)
    say(f"vllm serve {model.name} {' '.join(options)}")
    work = folder / policy
    work.mkdir()
    with Server(work, model, *options, python=python) as server:
        print(f"ready after {server.start_s:.0f} s, log: {server.log}")
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
        for question in QUESTIONS:
            reply = client.chat.completions.create(
                model=str(model),
                messages=[{"role": "user", "content": question}],
                max_tokens=12,
                temperature=0,
            )
            answer = reply.choices[0].message.content
            print(f"  {question!r} -> {answer!r}  (random weights)")
        say(f"vllm bench serve, balance {policy}: {' '.join(BENCH)}")
        result = work / "bench.json"
        with watch(server) as samples:
            _call(
                work,
                python,
                *("-m", "vllm.entrypoints.cli.main", "bench", "serve"),
                *("--model", str(model), "--port", str(server.port)),
                *BENCH,
                *("--save-result", "--result-filename", str(result)),
            )
        run = Run(
            policy=policy,
            bench=json.loads(result.read_text()),
            samples=tuple(samples),
            decisions=server.metric("vllm:dp_balance_decisions_total"),
            held_steps=server.metric("vllm:dp_balance_held_steps_total"),
        )
    _check(run)
    return run


def _check(run: Run) -> None:
    if run.bench["failed"] or not run.bench["completed"]:
        raise ToolError(
            f"demo: expected every request to complete with balance {run.policy}, "
            f"found {run.bench['failed']} failed; read the server's log in build/demo"
        )
    if run.policy == "off" and run.decisions:
        raise ToolError(
            "demo: expected no decision of a gate with balance off, found "
            f"{run.decisions}; this is a defect of the series"
        )
    if run.policy != "off" and not (
        len(run.held_steps) == RANKS and any(run.held_steps.values())
    ):
        raise ToolError(
            f"demo: expected the gate to hold admissions with {run.policy}, found "
            f"held steps {run.held_steps}; this is a defect of the gate"
        )


def _print_table(runs: list[Run]) -> None:
    say(f"The same {runs[0].bench['completed']} requests, balance off and on")
    rows: list[tuple[str, Callable[[Run], str]]] = [
        ("output tokens/s", lambda run: f"{run.bench['output_throughput']:.0f}"),
        ("mean TTFT (ms)", lambda run: f"{run.bench['mean_ttft_ms']:.0f}"),
        ("mean TPOT (ms)", lambda run: f"{run.bench['mean_tpot_ms']:.1f}"),
        ("p99 ITL (ms)", lambda run: f"{run.bench['p99_itl_ms']:.0f}"),
        ("decisions, rank 0 / 1", lambda run: _by_rank(run.decisions)),
        ("steps that held, rank 0 / 1", lambda run: _by_rank(run.held_steps)),
    ]
    print(f"{'':30}" + "".join(f"{run.policy:>14}" for run in runs))
    for title, value in rows:
        print(f"{title:30}" + "".join(f"{value(run):>14}" for run in runs))


def _by_rank(values: dict[int, float]) -> str:
    return " / ".join(f"{values[rank]:.0f}" for rank in sorted(values)) or "no gate"


def _call(folder: Path, python: Path, *arguments: str) -> None:
    """Run a Python command quietly."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = folder / f"{arguments[1].rpartition('.')[2]}.log"
    log.unlink(missing_ok=True)
    # On a terminal, for the benchmark's progress bar.
    bar = sys.stderr.isatty()
    command = [python, *arguments]
    status = to_log(command, log, env=environment, cwd=folder, show_errors=bar)
    if status != 0:
        raise ToolError(
            f"{log}: expected `{' '.join(arguments[1:4])} …` to succeed, found exit "
            f"status {status}: {tail_of(log)}; read the log"
        )


def run(args: argparse.Namespace) -> int:
    """Run `demo`."""
    demo(Paths.find())
    return 0
