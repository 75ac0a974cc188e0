"""What chunks of prompts cost, and how many tokens a budget allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_balance.core.policies.cost import (
    cost_of,
    tokens_within,
    twice_attended,
    whole_step,
)

positions, tokens = st.integers(0, 10**6), st.integers(1, 10**5)
prices = st.sampled_from([0.0, 1e-9, 1e-6, 1e-4, 1e-3])


@given(positions, st.lists(tokens, max_size=5), prices)
def test_the_parts_of_a_prompt_cost_what_the_whole_does(start, parts, price):
    position, cost, twice = start, 0.0, 0
    for part in parts:
        cost += cost_of(position, part, price)
        twice += twice_attended(position, part)
        position += part
    assert twice == twice_attended(start, sum(parts))
    assert abs(cost - cost_of(start, sum(parts), price)) <= 1e-9 * cost


@given(st.floats(0, 1e7), positions, tokens, prices)
def test_what_fits_is_the_most_that_costs_no_more(budget, position, wanted, price):
    allowed = tokens_within(budget, position, wanted, price)
    assert (budget >= 1) <= allowed <= wanted
    near = 1e-9 * budget
    if allowed > 1:
        assert cost_of(position, allowed, price) <= budget + near
    if budget >= 1 and allowed < wanted:
        assert cost_of(position, allowed + 1, price) > budget - near


def test_a_deep_chunk_is_not_cut_into_pieces_that_only_project():
    assert tokens_within(8192, 10**6, 9000, 1e-4, least=1000) == 1000
    assert tokens_within(500, 10**6, 9000, 1e-4, least=1000) == 500
    assert tokens_within(8192, 10**6, 300, 1e-4, least=1000) == 300


@pytest.mark.parametrize("price", [1e-9, 1e-6, 1e-4, 1e-2])
def test_a_whole_step_is_one_behind_two_others_whatever_attention_was_learned(price):
    whole = whole_step(8192, price)
    assert tokens_within(whole, 2 * 8192, 10**6, price) == 8192
    assert tokens_within(whole, 16 * 8192, 10**6, price) > 1000


@given(positions, tokens, prices)
def test_a_chunk_that_costs_the_budget_fits_whole(position, wanted, price):
    budget = cost_of(position, wanted, price)
    assert tokens_within(budget, position, wanted, price) == wanted
