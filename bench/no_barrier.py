"""The same ranks without the barrier: what there is to win.

No engine can do so. A step lasts the mean of the ranks' times instead of the longest,
and what it costs more to leave the graph counts by the share of ranks that prefill.
"""

from dataclasses import asdict

from vllm_balance.simulator.step_time.model import CostModel, Loads


class NoBarrier(CostModel):
    """A cost model of ranks that do not wait for each other."""

    def step_seconds(self, loads: Loads) -> float:
        alike, own, shared = self.parts(loads)
        ranks = len(own)
        share = (ranks - loads.prefill.count(0)) / ranks
        return alike + sum(own) / ranks + shared + self.c * share


def without_barrier(cost: CostModel) -> NoBarrier:
    """The same times, where no rank waits for another."""
    return NoBarrier(**asdict(cost))
