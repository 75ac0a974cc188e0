"""The memory of an engine core does not depend on how long it has run."""

import os
from pathlib import Path

import pytest
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.v1.core.sched.balance.rank.gate import BalanceGate
from vllm.v1.core.sched.balance.rank.group import RowExchange
from vllm.v1.core.sched.balance.rank.metrics import BalanceStats
from vllm.v1.core.sched.balance.rank.timing import Timing

from ports import free_port
from schedulers import end_step, make_scheduler, prompt_request, rank_config

STEPS, GROWTH_MB = 200_000, 1.0
"""More is a leak. Statistics once took 107 bytes a step: 18 MB in the nine tenths that
are measured."""


def busy_scheduler(model):
    """A real scheduler that runs 60 requests; four with long prompts wait."""
    config = rank_config(
        model,
        "adaptive",
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        max_model_len=4096,
        enable_prefix_caching=True,
    )
    scheduler = make_scheduler(config, num_blocks=40_000, log_stats=False)
    for number in range(64):
        prompt = [2 + number] * (100 if number < 60 else 2000)
        request = prompt_request(f"{number}", prompt, 1000, arrival_time=float(number))
        scheduler.add_request(request)
        if number == 59:
            scheduler.schedule()
    assert len(scheduler.running) == 60
    return scheduler


@pytest.mark.slow
def test_memory_is_flat_while_nobody_takes_the_reports(moe_model):
    """After the first tenth, with the product's exchange in a group of one."""
    scheduler = busy_scheduler(moe_model)
    waiting = list(scheduler.waiting)
    group = stateless_init_torch_distributed_process_group(
        "127.0.0.1", free_port(), 0, 1, "gloo"
    )
    rows = RowExchange(60.0)
    stats = BalanceStats(policy="adaptive")
    gate = BalanceGate(scheduler, "adaptive", Timing(rows), stats)
    settled = 0.0
    for number in range(STEPS):
        end_step(gate, number, group)
        for request in waiting:
            if not gate.holds(request):
                gate.clip(request, request.num_tokens, 0)
        if number == STEPS // 10:
            settled = resident_mb()
    growth = resident_mb() - settled
    rows.close(None)
    assert growth <= GROWTH_MB


def resident_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
