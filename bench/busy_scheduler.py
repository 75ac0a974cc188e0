"""A real scheduler with 10,000 requests waiting, on a tiny model that is never run."""

import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm.v1.request import RequestStatus

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "engine"))

import schedulers
from schedulers import BLOCK_SIZE, FULL_ATTENTION, make_scheduler
from vllm_balance.reference import tiny_models

SLOTS, WAITING = 64, 10_000
PROMPT, SHARED = 2000, 1792
"""Tokens of the prompts that are looked at, and of the prefix that they share."""
LONG = 400
"""Requests at the head of the queue with such prompts."""
SHORT_PROMPT = 100


@dataclass(frozen=True)
class State:
    """What a scheduler is like when it is measured."""

    running: int
    free_blocks: int = 40_000
    turnover: int = 0
    """Requests at the head of the queue that are others in every step."""
    sliding_window: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


BUSY = State(running=60, turnover=4)
STATES = {
    "all slots taken": State(running=64),
    "4 slots free, 4 other requests in each step": BUSY,
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


def empty(state: State) -> Any:
    """Without requests."""
    with tempfile.TemporaryDirectory() as folder:
        config = schedulers.engine_config(
            tiny_models.make("moe", Path(folder)),
            max_num_seqs=SLOTS,
            max_num_batched_tokens=8192,
            max_model_len=4096,
            enable_prefix_caching=True,
            data_parallel_size=2,
            data_parallel_balance="adaptive",
            **state.arguments,
        )
    window = replace(schedulers.WINDOW, sliding_window=512)
    layers = (FULL_ATTENTION, window) if state.sliding_window else (FULL_ATTENTION,)
    short = SHORT_PROMPT // BLOCK_SIZE + 1
    used = PROMPT // BLOCK_SIZE + 1 + state.running * short
    blocks = 1 + used + state.free_blocks
    return make_scheduler(config, num_blocks=blocks, layers=layers, log_stats=False)


def make(state: State) -> Any:
    """A scheduler in that state; its KV cache has the shared prefix."""
    scheduler = empty(state)
    shared = [1] * SHARED

    def add(number: int, long: bool) -> None:
        own = [2 + number] * (PROMPT - SHARED if long else SHORT_PROMPT)
        prompt = shared + own if long else own
        request = schedulers.prompt_request(
            str(number), prompt, 1000, arrival_time=float(number)
        )
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
