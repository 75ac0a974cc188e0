"""What the same ranks would do if none waited for another."""

from dataclasses import replace

import pytest

from no_barrier import without_barrier
from vllm_balance.simulator.step_time.model import CostModel, Loads

COST = CostModel(t0=1.0, a=0.1, b=0.01, c=0.4, phi=0.5)


def test_a_step_lasts_the_mean_of_the_ranks():
    cost = without_barrier(COST)
    assert cost.step_seconds(Loads([0, 0], [3, 5], [0, 0])) == pytest.approx(1.4)
    one = Loads([100, 0], [0, 0], [0, 0])
    assert cost.step_seconds(one) == pytest.approx(1 + 0.25 + 0.25 + 0.2)
    assert COST.step_seconds(one) == pytest.approx(1 + 0.5 + 0.25 + 0.4)


def test_ranks_that_do_the_same_wait_for_nobody():
    alike = Loads([60, 60], [3, 3], [90, 90], [900, 900], [9, 9])
    full = replace(COST, context=1e-3, attention=1e-4, projection=1e-3, experts=0.3)
    found = without_barrier(full).step_seconds(alike)
    assert found == pytest.approx(full.step_seconds(alike))
