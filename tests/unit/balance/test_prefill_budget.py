"""The choice of the prefill budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_balance.core.policies.cost import StepCost, best_prefill_budget

COST = StepCost(decode=0.04, fixed=0.04, own=1.0, shared=0.5, padding=0.3)
MAX_TOKENS = 1000

rank = st.tuples(st.integers(1, 2000), st.floats(0, 3))
work = st.lists(rank, min_size=1, max_size=8).map(sorted)


def gain(level, work, ranks, cost=COST):
    """By the definition, over all ranks."""
    mean = sum(min(tokens, level) for tokens, _ in work) / ranks
    saved = sum(waited * min(1, level / tokens) for tokens, waited in work)
    idle = 1 - len(work) / ranks
    return saved - cost.waste(level / MAX_TOKENS, mean / MAX_TOKENS, idle)


@given(work=work, idle=st.integers(0, 8), limit=st.integers(1, MAX_TOKENS))
def test_no_level_gains_more(work, idle, limit):
    ranks = len(work) + idle
    best, most = best_prefill_budget(work, ranks, limit, MAX_TOKENS, COST)
    assert 0 <= best <= limit
    assert most == pytest.approx(gain(best, work, ranks) if best else 0.0, abs=1e-9)
    for level in {*range(1, limit + 1, 7), *(min(p, limit) for p, _ in work)}:
        assert gain(level, work, ranks) <= most + 1e-9


@given(work=work, limit=st.integers(1, MAX_TOKENS), rank=st.integers(0, 7))
def test_the_best_level_from_the_least_on_whether_it_gains_or_not(work, limit, rank):
    ranks, levels = len(work) + 1, [min(tokens, limit) for tokens, _ in work]
    least = levels[rank % len(work)]
    best, most = best_prefill_budget(work, ranks, limit, MAX_TOKENS, COST, least)
    gains = {level: gain(level, work, ranks) for level in levels if level >= least}
    assert most == pytest.approx(max(gains.values()), abs=1e-9)
    assert gains[best] == pytest.approx(most, abs=1e-9)


def test_what_all_ranks_pay_together_is_no_waste():
    shared = StepCost(decode=0.04, fixed=0.0, own=0.0, shared=1.0)
    budget, _ = best_prefill_budget([(900, 1e-9)], 4, MAX_TOKENS, MAX_TOKENS, shared)
    assert budget == 900
