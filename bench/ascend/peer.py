"""vllm-ascend's own balance scheduler beside ours, on the same emulated NPUs.

    build/ascend/run python -P bench/ascend/peer.py [--system NAME] [--out FILE]

Serves a tiny mixture of experts on two ranks with each system in turn, and sends the
same requests. Theirs is upstream's vllm and vllm_ascend without our patches, from the
environment beside ours. Asks of each: which scheduler it runs, whether that gathers and
holds, what the clients get and when. A step takes as long as the emulator needs for it,
and EMULATOR_STEP_MS more, so that a prompt on one rank is waited for by the other; it
is no device's time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "ascend")]

from vllm.benchmarks.dp_balance.fingerprint import policies_fingerprint
from vllm.v1.core.sched.balance.policies.cap import Cap, CapParameters

from balance_tools.serving import server as server_module
from balance_tools.serving.server import Server
from counts import versions
from tiny import tiny_models

RANKS, SLOTS, CLIENTS, REQUESTS = 2, 4, 16, 48
STEP_MS = "200,3"
"""A step, and each token in it."""
LIMIT_S = 3600.0

OPTIONS = (
    *("--dtype", "float32", "--max-model-len", "512", "--enforce-eager"),
    *("--gpu-memory-utilization", "0.3", "--max-num-batched-tokens", "256"),
    *("--max-num-seqs", str(SLOTS), "--data-parallel-size", str(RANKS)),
    *("--enable-expert-parallel", "--api-server-count", "1"),
    *("--no-enable-prefix-caching", "--distributed-executor-backend", "uni"),
)
SWITCH = ("--additional-config", '{"enable_balance_scheduling": true}')
SYNC = ("--no-async-scheduling",)
CAP = ("--data-parallel-balance", "cap")


@dataclass(frozen=True)
class System:
    """What serves."""

    options: Sequence[str] = ()
    """Besides `OPTIONS`."""
    ours: bool = True
    """With our patches, or upstream's own."""


SYSTEMS: Mapping[str, System] = {
    "upstream": System(ours=False),
    "upstream, its balance": System(SWITCH, ours=False),
    "upstream, its balance, sync": System((*SWITCH, *SYNC), ours=False),
    "off": System(),
    "cap": System(CAP),
    "cap, sync": System((*CAP, *SYNC)),
    "adaptive": System(("--data-parallel-balance", "adaptive")),
}

Requests = Sequence[tuple[list[int], int]]
"""Prompt, and how many tokens to write."""


def main() -> int:
    """Serve with each system; print and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--system", choices=SYSTEMS, action="append")
    parser.add_argument("--out", type=Path, help="a file for the results, as JSON")
    options = parser.parse_args()
    server_module.START_S = server_module.REQUEST_S = LIMIT_S
    requests = draw()
    results: dict[str, Any] = {}
    tokens: dict[str, list[list[int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_models().make("moe", Path(folder))
        for number, name in enumerate(options.system or SYSTEMS):
            work = Path(folder) / str(number)
            work.mkdir()
            print(f"{name} …", file=sys.stderr, flush=True)
            results[name], tokens[name] = measure(work, model, SYSTEMS[name], requests)
            first = next(iter(tokens.values()))
            results[name]["same_tokens"] = tokens[name] == first
            print(json.dumps({name: results[name]}), flush=True)
            if options.out:
                write(options.out, results)
    return 0


def draw() -> Requests:
    """The same requests for every system: short and long prompts and answers."""
    chance = random.Random(1)
    return [
        (
            [chance.randrange(3, 259) for _ in range(chance.randrange(16, 240))],
            chance.randrange(8, 48),
        )
        for _ in range(REQUESTS)
    ]


def measure(
    work: Path, model: Path, system: System, requests: Requests
) -> tuple[dict[str, Any], list[list[int]]]:
    """Serve the requests: what was found, and the tokens of each."""
    environment = {
        "EMULATOR_COUNTS": str(work),
        "EMULATOR_STEP_MS": STEP_MS,
        "EMULATOR_MEMORY": str(2 << 30),
    }
    python = Path(sys.executable)
    if not system.ours:
        python = Path(sys.prefix).with_name("unpatched") / "bin/python"
    options = [*OPTIONS, *system.options]
    with Server(
        work, model, *options, environment=environment, python=python
    ) as server:
        server.complete([[3, 4, 5]] * 2 * RANKS, 4, 2 * RANKS)  # warm
        before = latencies(server)
        start = time.monotonic()
        prompts, lengths = zip(*requests, strict=True)
        tokens = server.complete(prompts, lengths, CLIENTS)
        duration = time.monotonic() - start
        after = latencies(server)
    found = {
        "output_tokens_per_s": sum(map(len, tokens)) / duration,
        **{name: (after[name] - before[name]) / len(requests) for name in after},
        **scheduled(work),
        # Of the last minute: what else the machine had to do.
        "load": os.getloadavg()[0],
    }
    return found, tokens


LATENCIES = {
    "mean_ttft_s": "vllm:time_to_first_token_seconds_sum",
    "mean_tpot_s": "vllm:request_time_per_output_token_seconds_sum",
    "mean_e2e_s": "vllm:e2e_request_latency_seconds_sum",
}


def latencies(server: Server) -> dict[str, float]:
    """Sums of seconds over all requests so far."""
    found = server.settled_metrics(*LATENCIES.values())
    return dict(zip(LATENCIES, (sum(ranks.values()) for ranks in found), strict=True))


def scheduled(folder: Path) -> dict[str, Any]:
    """What the schedulers of all ranks did (EMULATOR_COUNTS).

    `held` counts steps with a free slot in which something waited and nothing was
    admitted. Of the steps with something waiting and a free slot, where upstream's
    balance is on: `gathered` are those in which it knew of a running request, its own
    or another rank's, from a gather (without one it takes all for idle), `like_cap`
    those in which it did as our `cap` decides on what it took for the counts.
    """
    lines = [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    classes = [line["classes"] for line in lines if line["kind"] == "scheduler"]
    steps = [line for line in lines if line["kind"] == "schedule"]
    asked = [s for s in steps if s["waiting"] and s["running"] < s["limit"]]
    theirs = [s for s in asked if s["gathered"]]
    cap = Cap(CapParameters())
    like_cap = sum(
        cap.decide(
            SimpleNamespace(
                running=step["gathered"],
                max_running=[step["limit"]] * len(step["gathered"]),
            )
        ).admit
        == bool(step["admitted"])
        for step in theirs
    )
    return {
        "schedulers": sorted({names[0] for names in classes}),
        "steps": len(steps),
        "asked": len(asked),
        "held": sum(not step["admitted"] for step in asked),
        "gathered": sum(any(s["gathered"]) for s in theirs) if theirs else None,
        "like_cap": like_cap if theirs else None,
    }


def write(out: Path, results: Mapping[str, Any]) -> None:
    """The results so far."""
    document = {
        "command": "build/ascend/run python -P bench/ascend/peer.py",
        "versions": versions(policies_fingerprint()),
        "workload": {
            "ranks": RANKS,
            "slots": SLOTS,
            "clients": CLIENTS,
            "requests": REQUESTS,
            "step_ms": STEP_MS,
        },
        "systems": results,
    }
    out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
