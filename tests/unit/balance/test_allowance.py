"""What a decision allows in one step, prompt by prompt; both gates ask for it here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_balance.core.allowance import Allowance
from vllm_balance.core.policies.cost import cost_of, whole_step
from vllm_balance.core.policies.decision import OPEN, Decision

LARGEST = 512
"""Tokens of a step."""
PROMPTS = st.lists(
    st.tuples(st.integers(0, 9000), st.integers(1, LARGEST)), min_size=1, max_size=9
)
"""Position and length."""


def taken(decision, prompts):
    allowance = Allowance(decision, LARGEST)
    return [allowance.take(*prompt) for prompt in prompts]


@given(prompts=PROMPTS, budget=st.integers(0, 2000))
def test_prompts_share_the_budget(prompts, budget):
    found = taken(Decision(True, budget, "gain"), prompts)
    assert sum(found) == min(budget, sum(tokens for _, tokens in prompts))


@given(prompts=PROMPTS, budget=st.integers(1, 2000), price=st.floats(1e-6, 1e-2))
def test_deep_tokens_cost_more_and_a_cut_takes_all_that_is_left(prompts, budget, price):
    left = budget
    found = taken(Decision(True, budget, "gain", price), prompts)
    for tokens, (position, wanted) in zip(found, prompts, strict=True):
        cost = cost_of(position, wanted, price)
        if cost <= left:
            assert tokens == wanted
            left -= cost
        else:
            assert (left >= 1) <= tokens <= min(wanted, left)
            left = 0


@pytest.mark.parametrize("price", [0.0, 1e-4])
def test_without_a_budget_only_deep_prompts_are_cut(price):
    decision = OPEN._replace(cost_per_attended=price)
    assert taken(decision, [(0, LARGEST)]) == [LARGEST]
    (deep,) = taken(decision, [(10**6, LARGEST)])
    if price:
        assert 0 < deep < LARGEST
        assert cost_of(10**6, deep, price) <= whole_step(LARGEST, price)
    else:
        assert deep == LARGEST


def test_attention_alone_leaves_a_chunk_its_least():
    decision = Decision(True, LARGEST, "gain", 1e-2, least=100)
    assert taken(decision, [(10**6, LARGEST), (0, 1)]) == [100, 0]


def test_what_must_not_be_cut_may_take_more_than_is_left():
    allowance = Allowance(Decision(True, 10, "gain"), LARGEST)
    assert not allowance.stops_admission
    allowance.take_whole(0, 50)
    assert allowance.stops_admission
    assert allowance.take(0, 1) == 0


@pytest.mark.parametrize(
    ("admits", "budget", "stops"),
    [(True, None, False), (True, 0, True), (False, None, True), (True, 1, False)],
)
def test_what_stops_admission(admits, budget, stops):
    """While none may be admitted, prompts in progress go on as far as there is more."""
    allowance = Allowance(Decision(admits, budget, "test"), LARGEST)
    assert allowance.stops_admission is stops
    assert allowance.take(0, 50) == min(50, 50 if budget is None else budget)
