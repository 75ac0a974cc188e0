"""`cap` in real engine loops of several processes over gloo."""

import random

import pytest
import torch
import torch.distributed as dist

from dp_loop import LoopEngine
from dp_ranks import Ranks, burst, loop_arguments


class AscendRuleEngine(LoopEngine):
    """Checks `cap` against the published rule, written anew, by its own gather."""

    frozen = False

    def _has_global_unfinished_reqs(self, local_unfinished):
        active = super()._has_global_unfinished_reqs(local_unfinished)
        self.frozen = False
        if active:
            running = torch.tensor([len(self.scheduler.running)])
            counts = [torch.zeros_like(running) for _ in range(self.dp_size)]
            dist.all_gather(counts, running, group=self.dp_group)
            limit = self.scheduler.max_num_running_reqs
            self.frozen = max(int(count) for count in counts) == limit
            self.trace.closed += self.frozen
        return active

    def _record(self, output):
        super()._record(output)
        gate = self.scheduler.balance_gate
        where = f"rank {self.dp_rank} wave {self.current_wave} step {self.step_counter}"
        if gate.decision.admit == self.frozen:
            self.trace.violations.append(f"{where}: gate and vllm-ascend rule disagree")
        if self.frozen and self.trace.steps[-1][2]:
            self.trace.violations.append(f"{where}: admitted while frozen")
        if self.step_counter == 0 and (self.frozen or not gate.decision.admit):
            self.trace.violations.append(f"{where}: held at the start of a wave")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kv_blocks", [100, 18], ids=["roomy", "preempting"])
def test_cap_follows_the_vllm_ascend_rule_through_many_waves(
    moe_model, asynchronous, kv_blocks
):
    rng = random.Random(f"{asynchronous}{kv_blocks}")
    with Ranks(
        3,
        AscendRuleEngine,
        **loop_arguments(
            moe_model,
            data_parallel_balance="cap",
            async_scheduling=asynchronous,
            additional_config={"kv_blocks": kv_blocks},
        ),
    ) as ranks:
        for wave in range(12):
            burst(ranks, rng, f"w{wave}", rng.randint(1, 40), aborts=wave % 4 == 3)
            ranks.poll()
            burst(ranks, rng, f"x{wave}", rng.randint(0, 10))
            ranks.drain()
        reports = ranks.stop()
    traces = [trace for trace, _ in reports]
    assert [leftover for _, leftover in reports] == [0, 0, 0]
    assert [trace.violations for trace in traces] == [[], [], []]
    assert traces[0].waves >= 12
    assert all(trace.closed > 25 for trace in traces), "the rule was hardly exercised"
    if kv_blocks == 18:
        assert sum(trace.preemptions for trace in traces) > 0
