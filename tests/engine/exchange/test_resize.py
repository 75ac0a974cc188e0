"""Ranks come and go as in elastic expert parallelism, in real loops without a model."""

import random
from collections import defaultdict

from vllm.distributed.utils import stateless_init_torch_distributed_process_group

from dp_ranks import Ranks, burst, loop_arguments
from test_waves import CheckedEngine
from vllm_server import free_port

RANKS = 4
SPLITS_AT, JOIN_AT = 60, 130
"""Steps of the first wave, which has more."""


def test_requests_end_while_the_group_shrinks_and_grows(moe_model):
    """Four ranks become twice two, and four again."""
    ports = [free_port() for _ in range(3)]

    class Resized(CheckedEngine):
        def _has_global_unfinished_reqs(self, local_unfinished):
            half, place = divmod(self.dp_rank, 2)
            if self.current_wave == 0 and self.step_counter == SPLITS_AT:
                self._join(ports[half], place, 2)
            if self.current_wave == 0 and self.step_counter == JOIN_AT:
                self._join(ports[2], self.dp_rank, RANKS)
            return super()._has_global_unfinished_reqs(local_unfinished)

        def _record(self, output):
            super()._record(output)
            decision = self.scheduler.balance_gate.decision
            self.trace.steps[-1] = (self.current_wave, self.step_counter, decision)

        def _join(self, port, place, size):
            self.dp_group = stateless_init_torch_distributed_process_group(
                "127.0.0.1", port, place, size, "gloo"
            )

    arguments = loop_arguments(
        moe_model, data_parallel_balance="adaptive", async_scheduling=True
    )
    rng = random.Random(3)
    with Ranks(RANKS, Resized, **arguments) as ranks:
        ranks.running = True  # no start of a wave: each begins with its own request
        for rank in range(RANKS):  # so that no half ends before they join
            ranks.submit(rank, f"long-{rank}", 5, 240)
        for number in range(6):
            burst(ranks, rng, f"burst-{number}", 12, aborts=True)
        ranks.drain()
        burst(ranks, rng, "later", 20)
        ranks.drain()
        reports = ranks.stop()
    assert [left for _, left in reports] == [0] * RANKS
    assert all(trace.violations == [] for trace, _ in reports)
    assert sum(trace.closed for trace, _ in reports) > 0, "nothing was ever held"
    together = defaultdict(set)
    for trace, _ in reports:
        for wave, step, decision in trace.steps:
            if (wave, step) > (0, JOIN_AT + 1):
                together[wave, step].add(decision)
    assert [step for step, found in together.items() if len(found) > 1] == []
    assert len(together) > 100
