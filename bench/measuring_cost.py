# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Times what a rank measures of itself after a step, with 10,000 requests waiting.

    build/env/reference/bin/python bench/measuring_cost.py --output FILE

Real schedulers with 64 slots, in states that take the gate different ways. Counted is
all that happens for the row before it is sent: the queues and the KV cache are read,
prefixes are looked up, ages and holds are kept, and the checksum is made; and what the
coordinator is told of the rank's backlog. Needs the
interpreter of an environment with this vLLM; nothing else should run meanwhile.
"""

import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import record
import torch
from vllm.benchmarks.dp_balance.fingerprint import policies_fingerprint
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.balance.group.wire import encode
from vllm.v1.core.sched.balance.policies.decision import Decision
from vllm.v1.kv_cache_interface import SlidingWindowSpec
from vllm.v1.request import RequestStatus

from vllm_balance.reference import tiny_models

sys.path.append(str(Path(__file__).parents[1] / "tests" / "engine"))

from bare_schedulers import BLOCK_SIZE, FULL_ATTENTION, make_request, make_scheduler

SLOTS, WAITING = 64, 10_000
PROMPT, SHARED = 2000, 1792
"""Tokens of the prompts that are looked at, and of the prefix that they share."""
LONG = 400
"""Requests at the head of the queue with such prompts."""
SHORT_PROMPT = 100
ROOMY = 40_000
GOAL_US = 150.0
HOLD = Decision(admit=False, prefill_budget=0, reason="benchmark")


@dataclass(frozen=True)
class State:
    """What a scheduler is like when it is measured."""

    running: int
    free_blocks: int = ROOMY
    turnover: int = 0
    """Requests at the head of the queue that are others in every step."""
    sliding_window: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


STATES = {
    "all slots taken": State(running=64),
    "4 slots free, 4 other requests in each step": State(running=60, turnover=4),
    "64 requests held for long": State(running=0),
    "64 requests held, the KV cache full": State(running=1, free_blocks=60),
    "64 requests held, by priority": State(
        running=0, arguments={"scheduling_policy": "priority"}
    ),
    "64 requests held, full attention and sliding window": State(
        running=0, sliding_window=True
    ),
    "64 slots free, 64 other requests in each step": State(running=0, turnover=64),
}


def empty(model: Path, state: State) -> Any:
    """A scheduler without requests."""
    config = EngineArgs(
        model=str(model),
        max_num_seqs=SLOTS,
        max_num_batched_tokens=8192,
        max_model_len=4096,
        block_size=BLOCK_SIZE,
        skip_tokenizer_init=True,
        enforce_eager=True,
        distributed_executor_backend="uni",
        enable_prefix_caching=True,
        data_parallel_size=2,
        data_parallel_balance="cap",
        **state.arguments,
    ).create_engine_config()
    window = SlidingWindowSpec(
        block_size=BLOCK_SIZE,
        num_kv_heads=1,
        head_size=8,
        dtype=torch.float32,
        sliding_window=512,
    )
    layers = (FULL_ATTENTION, window) if state.sliding_window else (FULL_ATTENTION,)
    short = SHORT_PROMPT // BLOCK_SIZE + 1
    used = PROMPT // BLOCK_SIZE + 1 + state.running * short
    return make_scheduler(config, 1 + used + state.free_blocks, layers=layers)


def make(model: Path, state: State) -> Any:
    """A scheduler in that state; its KV cache has the shared prefix."""
    scheduler = empty(model, state)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    shared = [1] * SHARED

    def add(number: int, long: bool) -> None:
        own = [2 + number] * (PROMPT - SHARED if long else SHORT_PROMPT)
        prompt = shared + own if long else own
        arguments = {"block_hasher": hasher, "arrival_time": float(number)}
        request = make_request(str(number), len(prompt), 1000, prompt, **arguments)
        scheduler.add_request(request)

    add(0, long=True)
    scheduler.schedule()
    if not state.running:
        scheduler.finish_requests("0", RequestStatus.FINISHED_ABORTED)
    for number in range(1, state.running):
        add(number, long=False)
    scheduler.schedule()
    assert len(scheduler.running) == state.running
    for number in range(1000, 1000 + WAITING):
        add(number, long=number < 1000 + LONG)
    return scheduler


def measure(name: str, model: Path, calls: int) -> dict[str, Any]:
    """Microseconds per step: median, and the spread of the calls."""
    state = STATES[name]
    scheduler = make(model, state)
    gate = scheduler.balance_gate
    times, row = [], None
    for step in range(calls):
        gate.apply(HOLD)
        for request in islice(scheduler.waiting, SLOTS - state.running):
            gate.holds(request)
        start = time.perf_counter_ns()
        row = gate.measure(0, step, float(step), float(step))
        encode(row)
        gate.backlog()
        times.append((time.perf_counter_ns() - start) / 1e3)
        for _ in range(state.turnover):
            scheduler.waiting.insert(LONG - 1, scheduler.waiting.popleft())
    assert row is not None
    return {
        "state": name,
        "prompt": PROMPT,
        "goal_us": GOAL_US,
        "pending": row.pending,
        "pending_tokens": row.pending_tokens,
        **record.spread(times[calls // 10 :]),
    }


def main() -> None:
    """Prints a table, and writes the results if asked to."""
    parser = record.parser(__doc__, calls=2000)
    parser.add_argument("--state", nargs="+", default=list(STATES), choices=STATES)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_models.make("moe", Path(folder))
        for name in arguments.state:
            results.append(measure(name, model, arguments.calls))
            print(results[-1], flush=True)
    record.write(arguments, results, policies_fingerprint())


if __name__ == "__main__":
    main()
