"""What the demo asks of real servers, one for each policy: answers, and the load."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from balance_tools.errors import ToolError
from balance_tools.run import tail_of, to_log
from balance_tools.serving.server import Server

RANKS = 4
POLICIES = ("off", "adaptive")
SLOTS = 8
DEVICE = {"t0": 0.05, "a": 0.001, "b": 0.0005, "c": 0.04}
"""Seconds of a step of the emulated device: t0 always, a for each request that decodes,
b for each prompt token of the fullest rank, c if any rank has a prompt."""
MAX_TOKENS = 512
"""In a step of a rank."""
SERVE = (
    *("--max-num-seqs", str(SLOTS), "--max-num-batched-tokens", str(MAX_TOKENS)),
    *("--max-model-len", "4096", "--no-enable-prefix-caching"),
    *("--no-async-scheduling", "--enable-logging-iteration-details"),
    *("--additional-config", json.dumps({"emulated_device": DEVICE})),
)
FEW_SLOTS = (
    *("--data-parallel-size", "2", "--api-server-count", "1"),
    # Few slots, so that ranks fill up and the gate has something to decide.
    *("--max-num-seqs", "4", "--max-num-batched-tokens", "256"),
    *("--max-model-len", "1024"),
)
QUESTIONS = ("Why do ranks wait?", "What is a wave?", "Who admits a prefill?")
COPIES = 8
"""Each question is asked so often, with a number in front."""
REQUESTS = 160
STEADY = "steady_output_throughput"
"""Of a result: tokens per second until the last request is sent, with full slots."""
# The name of the process has the rank; later releases log from the front-end, with its
# number.
_LINE = re.compile(
    r"^(?P<end>[\d.]+) "
    r"(?:EngineCore_DP(?P<process>\d+) .*|\S+ Engine (?P<engine>\d+): )"
    r"Iteration\(\d+\): "
    r"\d+ context requests, (?P<prefill>\d+) context tokens, "
    r"(?P<decodes>\d+) generation requests, \d+ generation tokens, "
    r"iteration elapsed time: (?P<ms>[\d.]+) ms(?! \(dummy\))",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Step:
    """One step of one rank; times are in seconds since the first step of any."""

    rank: int
    start: float
    end: float
    prefill: int
    """Prompt tokens that the rank computed."""
    decodes: int
    """Requests that it generated a token for."""
    own_s: float
    """How long the step would have taken without the other ranks."""

    @property
    def waits_s(self) -> float:
        """How long the rank waited for the slowest one."""
        return max(0.0, self.end - self.start - self.own_s)


@dataclass(frozen=True)
class Run:
    """One policy's part of the comparison."""

    policy: str
    bench: dict[str, Any]
    """What `vllm bench serve --save-result` wrote."""
    steps: tuple[Step, ...]
    held_steps: dict[int, float]
    """By rank, the steps in which it held a prompt back; empty without a gate."""


def measure(
    python: Path, folder: Path, model: Path, policy: str, requests: int = REQUESTS
) -> Run:
    """Serve with `policy`, and send the requests with `vllm bench serve`.

    `python` is that of an environment with the reference wheel. `folder`, which exists,
    gets the logs and the result. Of `model`, any mixture of experts, only configuration
    and tokenizer count. All policies get the same requests.

    Raises:
        ToolError: A request failed, or the gate did not do what the policy says.
    """
    result = folder / "bench.json"
    steps = folder / "steps.log"
    logging_config = {"VLLM_LOGGING_CONFIG_PATH": str(_logging(folder, steps))}
    served = served_by(folder, model, policy, python=python, environment=logging_config)
    with served as server:
        print(f"ready after {server.start_s:.0f} s, log: {server.log}", flush=True)
        load = (*all_slots(RANKS), "--seed", "1")
        bench = send(python, server, result, requests, load)
        held = server.metric("vllm:dp_balance_held_steps_total")
    run = Run(policy, bench, read_steps(steps, DEVICE), held)
    check(run)
    return run


def served_by(
    folder: Path,
    model: Path,
    policy: str,
    *,
    ranks: int = RANKS,
    api_servers: int = 1,
    options: Sequence[str] = (),
    **server: Any,
) -> Server:
    """A server on the emulated device; `server` are arguments of `Server`."""
    return Server(
        *(folder, model, *SERVE, "--data-parallel-size", str(ranks)),
        *("--api-server-count", str(api_servers), "--data-parallel-balance", policy),
        *options,
        **server,
    )


def all_slots(ranks: int) -> list[str]:
    """Options of `vllm bench serve` that keep all slots in use."""
    return [
        *("--dataset-name", "random", "--random-input-len", "400"),
        *("--random-output-len", "60", "--random-range-ratio", "0.4"),
        *("--max-concurrency", str(ranks * SLOTS)),
    ]


def send(
    python: Path, server: Server, result: Path, requests: int, load: Sequence[str]
) -> dict[str, Any]:
    """Run `vllm bench serve` and keep its result, with `STEADY` and every request.

    `python` is that of an environment with the reference wheel; `load` are options that
    say which requests are sent, and when.
    """
    call(
        result.parent,
        python,
        *("-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai"),
        *("--model", str(server.model), "--base-url", server.url, *load),
        *("--num-prompts", str(requests)),
        *("--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--save-result", "--save-detailed", "--result-filename", str(result)),
    )
    bench: dict[str, Any] = json.loads(result.read_text())
    return bench | {STEADY: steady_throughput(bench)}


def steady_throughput(bench: Mapping[str, Sequence[Any]]) -> float:
    """Output tokens per second until the last request was sent; 0 for one request."""
    start, last = min(bench["start_times"]), max(bench["start_times"])
    times = zip(bench["start_times"], bench["ttfts"], bench["itls"], strict=True)
    tokens = sum(
        sent + offset <= last
        for sent, ttft, itls in times
        for offset in accumulate(itls, initial=ttft)
    )
    return tokens / (last - start) if last > start else 0.0


def check(run: Run) -> None:
    """Refuse a failed request, and a gate that is not what the policy says."""
    if run.bench["failed"] or not run.bench["completed"]:
        raise ToolError(
            f"demo: expected every request to complete with balance {run.policy}, "
            f"found {run.bench['failed']} failed; read the server's log in build/demo"
        )
    holds = len(run.held_steps) == RANKS and any(run.held_steps.values())
    wrong = bool(run.held_steps) if run.policy == "off" else not holds
    if wrong:
        raise ToolError(
            f"demo: expected the gates of {RANKS} ranks to hold prompts with adaptive, "
            f"and no metric of a gate with off, found held steps {run.held_steps} with "
            f"{run.policy}; this is a defect of the series"
        )


def call(folder: Path, python: Path, *arguments: str) -> None:
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


def _logging(folder: Path, steps: Path) -> Path:
    """A logging configuration: vLLM's, and a file with the time and rank of lines.

    vLLM's own lines have whole seconds, and lines of several ranks may mix.
    """
    own = {"class": "logging.StreamHandler", "formatter": "own"}
    file = {"class": "logging.FileHandler", "filename": str(steps), "formatter": "file"}
    logger = {"handlers": ["own", "file"], "level": "INFO", "propagate": False}
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "own": {"format": "%(levelname)s %(asctime)s %(name)s %(message)s"},
            "file": {"format": "%(created).4f %(processName)s %(message)s"},
        },
        "handlers": {"own": own, "file": file},
        "loggers": {"vllm": logger},
    }
    path = folder / "logging.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def read_steps(log: Path, device: Mapping[str, float]) -> tuple[Step, ...]:
    """The steps of a log whose lines begin with a time and the name of the process.

    Args:
        log: Written with `--enable-logging-iteration-details`.
        device: The constants t0, a, b and c of the emulated device, in seconds.

    Raises:
        ToolError: There is no step in it.
    """
    steps = []
    for found in _LINE.finditer(log.read_text(encoding="utf-8", errors="replace")):
        end, seconds = float(found["end"]), float(found["ms"]) / 1000
        prefill, decodes = int(found["prefill"]), int(found["decodes"])
        own = device["t0"] + device["a"] * decodes
        if prefill:
            own += device["c"] + device["b"] * prefill
        rank = int(found["process"] or found["engine"])
        steps.append(Step(rank, end - seconds, end, prefill, decodes, own))
    if not steps:
        raise ToolError(
            f"{log}: expected the steps of the ranks, found none; this is a defect of "
            "the demo: does vLLM write them in another form?"
        )
    first = min(step.start for step in steps)
    moved = (replace(s, start=s.start - first, end=s.end - first) for s in steps)
    return tuple(sorted(moved, key=lambda step: (step.start, step.rank)))


def waiting_share(steps: Sequence[Step]) -> float:
    """Which share of the time in steps the ranks waited for the slowest one."""
    spent = sum(step.end - step.start for step in steps)
    return sum(step.waits_s for step in steps) / spent


def answers(python: Path, folder: Path, model: Path, policy: str) -> dict[str, str]:
    """What a server with `policy` answers to every question, asked all at once."""
    options = (*FEW_SLOTS, "--data-parallel-balance", policy)
    asked = [f"{n}. {text}" for n in range(COPIES) for text in QUESTIONS]
    work = folder / f"answers-{policy}"
    work.mkdir()
    with Server(work, model, *options, python=python) as server:
        print(f"balance {policy}: ready after {server.start_s:.0f} s", flush=True)

        def ask(question: str) -> str:
            body = {
                "model": str(model),
                "messages": [{"role": "user", "content": question}],
                "max_tokens": 24,
                "temperature": 0,
            }
            reply = server.post("/v1/chat/completions", body).json()
            return str(reply["choices"][0]["message"]["content"])

        with ThreadPoolExecutor(len(asked)) as pool:
            return dict(zip(asked, pool.map(ask, asked), strict=True))


def compare(found: Mapping[str, Mapping[str, str]]) -> None:
    """Say that the answers are equal with every policy.

    Raises:
        ToolError: They are not.
    """
    first = found["off"]
    for policy, others in found.items():
        for question, answer in first.items():
            if others[question] != answer:
                raise ToolError(
                    f"demo: expected {question!r} to be answered with {policy} as with "
                    f"off, {answer!r}, found {others[question]!r}; this is a defect of "
                    "the series"
                )
    question, answer = next(iter(first.items()))
    print(f"  {question!r} -> {answer!r}  (random weights)")
    print(f"All {len(first)} answers are equal with {' and '.join(found)}.")
