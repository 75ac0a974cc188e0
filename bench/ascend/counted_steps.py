"""Counts what a step costs each rank, for the ways in which MoE layers communicate.

    build/ascend/run python -P bench/ascend/counted_steps.py [--ranks N] [--out FILE]

Serves a tiny mixture of experts on emulated devices. On every rank one request decodes;
beside it prompts of several lengths come to one rank, and to all. Nothing here is a
time: the emulator counts tokens, rows, bytes and calls.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "ascend")]

import requests

from balance_tools.serving import server as server_module
from balance_tools.serving.server import Server
from counts import Step, read, versions
from tiny import tiny_models

MODES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "A2, all-gather": ("A2", {}),
    "A3, all-to-all": ("A3", {}),
    "A3, MC2 for prompts too": ("A3", {"enable_prefill_mc2": True}),
}
"""The device whose code runs, and `additional_config`."""

CHIPS = {"A2": "Ascend910B3", "A3": "Ascend910_9391"}
LENGTHS = (64, 128, 256)
DECODES = 160
"""Tokens of the requests that decode while the prompts come."""

OPTIONS = (
    *("--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"),
    *("--gpu-memory-utilization", "0.3", "--max-num-batched-tokens", "512"),
    *("--max-num-seqs", "4", "--no-enable-prefix-caching"),
    *("--enable-expert-parallel", "--api-server-count", "1"),
    *("--distributed-executor-backend", "uni"),
)
LIMIT_S = 3600.0


def main() -> int:
    """Serve and count in each mode; print and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", type=Path, help="a file for the results, as JSON")
    parser.add_argument("--mode", choices=MODES, action="append", help="default: all")
    options = parser.parse_args()
    server_module.START_S = server_module.REQUEST_S = LIMIT_S
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_models().make("moe", Path(folder))
        for number, name in enumerate(options.mode or MODES):
            work = Path(folder) / str(number)
            work.mkdir()
            print(f"{name} …", file=sys.stderr, flush=True)
            results[name] = table(count(work, model, name, options.ranks))
            print(json.dumps({name: results[name]}), flush=True)
            if options.out:
                write(options.out, results, options.ranks)
    return 0


def write(out: Path, results: Mapping[str, Any], ranks: int) -> None:
    """The results so far."""
    command = "build/ascend/run python -P bench/ascend/counted_steps.py"
    document = {
        "command": f"{command} --ranks {ranks}",
        "versions": versions("off"),
        "ranks": ranks,
        "modes": results,
    }
    out.write_text(json.dumps(document, indent=1) + "\n")


def count(work: Path, model: Path, mode: str, ranks: int) -> list[list[Step]]:
    """Serve in a mode: [steps][ranks]."""
    device, config = MODES[mode]
    environment = {
        "EMULATOR_COUNTS": str(work),
        "EMULATOR_DEVICE_TYPE": device,
        "EMULATOR_SOC": CHIPS[device],
        "EMULATOR_MEMORY": str(2 << 30),
        "VLLM_ASCEND_BALANCE_SCHEDULING": "0",
    }
    options = [*OPTIONS, "--data-parallel-size", str(ranks)]
    if config:
        options += ["--additional-config", json.dumps(config)]
    with Server(work, model, *options, environment=environment) as server:
        send(server, ranks)
    return read(work)


def send(server: Server, ranks: int) -> None:
    """One request that decodes on each rank, and prompts beside it."""

    def ask(rank: int, prompt: int, tokens: int) -> None:
        response = requests.post(
            f"{server.url}/v1/completions",
            json={
                "model": str(server.model),
                # Of all letters, so that each expert gets some.
                "prompt": [3 + (7 * i + rank + prompt) % 256 for i in range(prompt)],
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
            },
            headers={"X-data-parallel-rank": str(rank)},
            timeout=LIMIT_S,
        )
        response.raise_for_status()

    every = range(ranks)
    with ThreadPoolExecutor(2 * ranks) as pool:
        decodes = [pool.submit(ask, rank, 1, DECODES) for rank in every]
        for length in LENGTHS:
            ask(0, length, 1)
            list(pool.map(lambda rank, n=length: ask(rank, n, 1), every))
        for decode in decodes:
            decode.result()


def table(steps: Sequence[Sequence[Step]]) -> list[dict[str, Any]]:
    """For each kind of step that came, the counts of its ranks.

    Steps of the same loads must count the same, but for the choice of the experts; the
    first one is taken.
    """
    found: dict[tuple[int, ...], dict[str, Any]] = {}
    for ranks in steps:
        loads = tuple(step.tokens for step in ranks)
        if any(step.idle for step in ranks) or loads in found:
            continue
        found[loads] = {"loads": loads, **{n: f(ranks) for n, f in COUNTED.items()}}
    return [found[loads] for loads in sorted(found)]


COUNTED: Mapping[str, Callable[[Sequence[Step]], Any]] = {
    "padded": lambda ranks: ranks[0].ranks,
    "rows": lambda ranks: [step.rows for step in ranks],
    "sent": lambda ranks: [sum(step.sent.values()) for step in ranks],
}

if __name__ == "__main__":
    sys.exit(main())
