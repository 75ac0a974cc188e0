"""What the demo shows first: balance changes no answer of a real model."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.serving.server import Server

SERVE = (
    *("--data-parallel-size", "2", "--api-server-count", "1"),
    # Few slots, so that ranks fill up and the gate has something to decide.
    *("--max-num-seqs", "4", "--max-num-batched-tokens", "256"),
    *("--max-model-len", "1024"),
)
QUESTIONS = ("Why do ranks wait?", "What is a wave?", "Who admits a prefill?")
COPIES = 8
"""Each question is asked so often, with a number in front."""


def answers(python: Path, folder: Path, model: Path, policy: str) -> dict[str, str]:
    """What a server with `policy` answers to every question, asked all at once."""
    options = (*SERVE, "--data-parallel-balance", policy)
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
