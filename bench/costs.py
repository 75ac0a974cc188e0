"""Times what balance adds to a step of a rank.

::

    build/env/reference/bin/python bench/costs.py [PART ...]

Needs the interpreter of an environment with this vLLM; nothing else should run on the
machine meanwhile. It writes bench/results/costs.json. The parts:

- decision: `adaptive` decides on the rows of a busy server.
- measuring: a rank measures itself after a step, with 10,000 requests waiting.
- choice: the front-end's event loop hashes a prompt, and sends short requests.
- exchange: ranks on this machine exchange rows; how long the last one waits.
- hosts: a step of ranks on several hosts, which are network namespaces; without root,
  behind `unshare --user --map-root-user`. It takes three minutes.
"""

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.balance.core.dispatch import TO_COMPUTE, Dispatch
from vllm.v1.core.sched.balance.core.policies import create_policy
from vllm.v1.core.sched.balance.core.policies.decision import Decision
from vllm.v1.core.sched.balance.core.policies.rows import Limits, Row, Snapshot
from vllm.v1.core.sched.balance.front.board import SharedBoard, create_board
from vllm.v1.core.sched.balance.front.front_end import BalanceDispatch, PromptHasher
from vllm.v1.core.sched.balance.rank.group import RowExchange
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core_client import DPLBAsyncMPClient
from vllm.v1.request import RequestStatus

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "engine"))

import schedulers
from schedulers import BLOCK_SIZE, FULL_ATTENTION, make_scheduler
from vllm_balance.reference import tiny_models

Times = list[float]
"""In microseconds."""


def us_since(start_ns: int) -> float:
    """Microseconds."""
    return (time.perf_counter_ns() - start_ns) / 1e3


# ---- decision


def busy_rows(ranks: int, rng: random.Random) -> list[Row]:
    """Most ranks decode, many have something pending."""
    prefills = rng.random() < 0.2
    rows = []
    for _ in range(ranks):
        pending, running = rng.choice([0, 0, 1, 2, 5]), rng.randint(20, 27)
        row = Row(*[0] * len(Row._fields))._replace(
            running=running,
            decoding=running,
            waiting=pending,
            pending=pending,
            pending_tokens=pending * rng.randint(50, 3000),
            prefill_tokens=rng.randrange(4096) if prefills else 0,
            step_time_us=900_000 if prefills else 45_000,
            pending_age_us=rng.randrange(3_000_000) if pending else 0,
            pending_attended=pending * rng.randint(1250, 4_500_000),
            prefill_attended=rng.randrange(8_000_000) if prefills else 0,
        )
        rows.append(row)
    return rows


def decision() -> dict[str, Times]:
    """Of `adaptive`, which has seen each snapshot and so has learned its costs.

    The other policies take less than a tenth of it.
    """
    found = {}
    for ranks in (4, 16, 64, 1024):
        rng = random.Random(1)
        limits = [Limits(32, 4096)] * ranks
        snapshots = [
            Snapshot.from_rows(busy_rows(ranks, rng), limits) for _ in range(64)
        ]
        policy = create_policy("adaptive")
        for snapshot in snapshots:
            policy.decide(snapshot)
        times = []
        for call in range(2000):
            snapshot = snapshots[call % len(snapshots)]
            start = time.perf_counter_ns()
            policy.decide(snapshot)
            times.append(us_since(start))
        found[f"adaptive, {ranks} ranks"] = times
    return found


# ---- measuring

SLOTS, WAITING, LONG = 64, 10_000, 400
"""`LONG` of those that wait, the first, have prompts of `PROMPT` tokens."""
PROMPT, SHARED, SHORT = 2000, 1792, 100
"""Tokens of a long prompt, of the prefix that all share, and of a short prompt."""
HOLD = Decision(admit=False, prefill_budget=0, reason="benchmark")
STATES = {
    "all slots taken": (64, 40_000),
    "64 requests held": (0, 40_000),
    "64 requests held, the KV cache full": (1, 60),
}
"""Requests that run, and free blocks."""


def busy_scheduler(running: int, free_blocks: int = 40_000) -> Any:
    """A real scheduler with 10,000 requests waiting, on a tiny model."""
    with tempfile.TemporaryDirectory() as folder:
        config = schedulers.engine_config(
            tiny_models.make("moe", Path(folder)),
            max_num_seqs=SLOTS,
            max_num_batched_tokens=8192,
            max_model_len=4096,
            enable_prefix_caching=True,
            data_parallel_size=2,
            data_parallel_balance="adaptive",
        )
    used = PROMPT // BLOCK_SIZE + 1 + running * (SHORT // BLOCK_SIZE + 1)
    blocks = 1 + used + free_blocks
    scheduler = make_scheduler(
        config, num_blocks=blocks, layers=(FULL_ATTENTION,), log_stats=False
    )
    shared = [1] * SHARED

    def add(number: int, long: bool) -> None:
        own = [2 + number] * (PROMPT - SHARED if long else SHORT)
        prompt = shared + own if long else own
        request = schedulers.prompt_request(
            str(number), prompt, 1000, arrival_time=float(number)
        )
        scheduler.add_request(request)

    add(0, long=True)
    scheduler.schedule()
    if not running:
        scheduler.finish_requests("0", RequestStatus.FINISHED_ABORTED)
    for number in range(1, running):
        add(number, long=False)
    scheduler.schedule()
    assert len(scheduler.running) == running
    for number in range(1000, 1000 + WAITING):
        add(number, long=number < 1000 + LONG)
    return scheduler


def measuring() -> dict[str, Times]:
    """All that happens for the row before it is sent."""
    found = {}
    for name, (running, free_blocks) in STATES.items():
        scheduler = busy_scheduler(running, free_blocks)
        gate, times = scheduler.balance_gate, []
        for step in range(600):
            gate.apply(HOLD)
            for request in islice(scheduler.waiting, SLOTS - running):
                gate.holds(request)
            start = time.perf_counter_ns()
            gate.measure(0, step, float(step))
            times.append(us_since(start))
        found[name] = times[60:]
    return found


# ---- choice

IN_FLIGHT = 256
"""Requests."""
HASHED = 100_000
"""Prompt tokens of a long request."""


def request(name: str, tokens: Sequence[int]) -> EngineCoreRequest:
    """A request for one token, as it gets to the client."""
    sampling = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
    empty = dict.fromkeys(("mm_features", "pooling_params", "lora_request"))
    empty |= dict.fromkeys(("cache_salt", "data_parallel_rank"))
    return EngineCoreRequest(
        name, list(tokens), sampling_params=sampling, arrival_time=0.0, **empty
    )


def choose(ranks: int, dispatch: BalanceDispatch | None) -> Times:
    """Of a client's hooks, from the choice of a rank to the end of a request."""
    client: Any = object.__new__(DPLBAsyncMPClient)  # which would start engines
    found = {
        "core_engines": [b"%d" % rank for rank in range(ranks)],
        "lb_engines": [[0, 0] for _ in range(ranks)],
        "reqs_in_flight": {},
        "client_count": 1,
        "eng_start_index": 0,
        "balance_dispatch": dispatch,
    }
    vars(client).update(found)
    times = []
    calls = 5000 + IN_FLIGHT
    requests = [request(f"{i}", range(i, i + SHORT)) for i in range(calls)]
    for number, new in enumerate(requests):
        done = requests[number - IN_FLIGHT].request_id
        first = EngineCoreOutputs(outputs=[EngineCoreOutput(done, [7])])
        last = EngineCoreOutputs(finished_requests={done})
        start = time.perf_counter_ns()
        client.get_core_engine_for_request(new)
        if dispatch is not None:
            dispatch.sent(new)
        for outputs in (first, last) if number >= IN_FLIGHT else ():
            with contextlib.suppress(StopIteration):
                client.process_engine_outputs(client, outputs).send(None)
        times.append(us_since(start))
    return times[IN_FLIGHT:]


def choice() -> dict[str, Times]:
    """Per 10,000 tokens, and per short request, also with vLLM's own."""
    hasher, times = PromptHasher(16), []
    for number in range(50):
        long = request("long", range(number, number + HASHED))
        start = time.perf_counter_ns()
        hasher.keys(long)
        times.append(us_since(start) * 10_000 / HASHED)
    found = {"hashing 10,000 prompt tokens": times}
    for ranks in (4, 8, 16, 64):
        memory = create_board(multiprocessing.get_context("spawn"), ranks)
        board = SharedBoard(memory, 0)
        dispatch = Dispatch(ranks, 64, TO_COMPUTE, board, 1000, 512)
        own = BalanceDispatch(dispatch, hasher)
        of = f"{ranks} ranks and API servers"
        found[f"a short request, {of}, vLLM's dispatch"] = choose(ranks, None)
        found[f"a short request, {of}, ours"] = choose(ranks, own)
        found[f"the choice alone of a prompt with 8 chunks, {of}"] = alone(dispatch)
    return found


def alone(dispatch: Dispatch) -> Times:
    """With all that others say meanwhile; each rank has half of the prompt."""
    keys = [b"%014d" % chunk for chunk in range(8)]
    for memory in dispatch.memories:
        memory.used(keys[:4])
    times = []
    for _ in range(2000):
        start = time.perf_counter_ns()
        dispatch.choose(keys)
        times.append(us_since(start))
    return times


# ---- exchange

STEP_S, JITTER_S = 0.02, 0.0005
"""Of the emulated device, after which the ranks come that much apart, at most."""
WARM_UP, CALLS = 20, 200


def exchange() -> dict[str, Times]:
    """Of as many ranks as have a core each, and up to four times as many."""
    found: dict[str, Times] = {}
    for ranks in (2, 4, 8, 16, 32, 64):
        if ranks <= 4 * len(os.sched_getaffinity(0)):
            for kind, times in of_ranks(ranks).items():
                found[f"{kind}, {ranks} ranks"] = times
    return found


def of_ranks(ranks: int) -> dict[str, Times]:
    """How long the last rank waits: for rows, and for upstream's end of a wave.

    Raises:
        BrokenProcessPool: a rank ended before the others.
    """
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(ranks, spawn) as pool,
    ):
        spans = list(pool.map(_rank, range(ranks), repeat(ranks), repeat(folder)))
    return {
        kind: [
            1e6 * (max(end for _, end in step) - max(start for start, _ in step))
            for step in zip(*(rank[kind][WARM_UP:] for rank in spans), strict=True)
        ]
        for kind in spans[0]
    }


def _rank(rank: int, ranks: int, folder: str) -> dict[str, list[tuple[float, float]]]:
    """By kind, when each call began and ended, by the machine's one clock."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    group = dist.distributed_c10d._get_default_group()
    rows = RowExchange(timeout=60.0)
    rows.join(group, Limits(32, 4096), lambda: None)
    row = Row(**dict.fromkeys(Row._fields, 1))
    number = torch.ones(1, dtype=torch.int32)
    actions: dict[str, Callable[[int], object]] = {
        "rows": lambda step: (rows.send(row._replace(step=step)), rows.receive()),
        "one number, upstream's": lambda step: dist.all_reduce(number, group=group),
    }
    rng = random.Random(rank)
    spans: dict[str, list[tuple[float, float]]] = {kind: [] for kind in actions}
    for step in range(CALLS + WARM_UP):
        for kind, act in actions.items():
            time.sleep(STEP_S + rng.random() * JITTER_S)
            start = time.monotonic()
            act(step)
            spans[kind].append((start, time.monotonic()))
    dist.barrier()
    rows.close(None)
    dist.destroy_process_group()
    return spans


def several_hosts() -> dict[str, Times]:
    """See `hosts.py`."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    from hosts import hosts

    return hosts()


PARTS: dict[str, Callable[[], dict[str, Times]]] = {
    "decision": decision,
    "measuring": measuring,
    "choice": choice,
    "exchange": exchange,
    "hosts": several_hosts,
}


def main() -> None:
    """Writes and prints median and ninth tenth, in microseconds, of each figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parts = parser.parse_args().parts or list(PARTS)
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"{', '.join(unknown)}: no such part; choose {', '.join(PARTS)}")
    path = ROOT / "bench" / "results" / "costs.json"
    document = json.loads(path.read_text()) if path.exists() else {}
    for name in tqdm(parts, unit="part"):
        figures = {}
        for what, times in PARTS[name]().items():
            tenths = statistics.quantiles(times, n=10)
            figures[what] = [round(statistics.median(times), 1), round(tenths[-1], 1)]
            tqdm.write(f"{name}: {what}: {figures[what]} µs")
        python, cores = platform.python_version(), os.cpu_count()
        load = f"load {os.getloadavg()[0]:.1f}"
        made = f"Python {python}, {platform.machine()}, {cores} cores, {load}"
        document[name] = {"made": made, "median and ninth tenth, us": figures}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
