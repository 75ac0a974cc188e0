"""Where rows go between hosts, they are on their way while a step is computed."""

import time

from dp_loop import LoopEngine
from dp_ranks import HOW, Ranks, loop_arguments

STEPS, TIMEOUT_S = 100, 3


class WatchedEngine(LoopEngine):
    """Notes the steps that are computed before the rank has sent its row.

    The first step of a wave takes longer than ranks wait for each other. A rank may
    hear of the wave before its request comes, and not by that.
    """

    def add_request(self, *arguments):
        super().add_request(*arguments)
        self.engines_running = True

    def _record(self, output):
        super()._record(output)
        self._compute()

    def execute_dummy_batch(self):
        super().execute_dummy_batch()
        self._compute()

    def _compute(self):
        if not getattr(self.scheduler.balance_gate._timing, "_is_sent", False):
            self.trace.violations.append(self.step_counter)
        if self.step_counter == 0:
            time.sleep(TIMEOUT_S + 2)


def test_rows_are_sent_before_the_step_also_by_ranks_without_requests(moe_model):
    """But for the first of a wave, of which a rank does not know yet that all come.

    In that none does, or the others' whole step would count as a wait for their rows.
    """
    arguments = loop_arguments(
        moe_model,
        data_parallel_balance="adaptive",
        cpu_distributed_timeout_seconds=TIMEOUT_S,
        **HOW["several hosts"],
    )
    with Ranks(2, WatchedEngine, **arguments) as ranks:
        ranks.submit(0, "alone", 5, STEPS)
        ranks.drain()
        reports = ranks.stop()
    assert [({*trace.violations}, left) for trace, left in reports] == [({0}, 0)] * 2
