"""Wishes for another policy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_balance import policy
from vllm_balance.core.policies import POLICIES
from vllm_balance.core.policies.wishes import NAMES, first_wish, next_wish, wished

names = st.sampled_from(NAMES)


@given(st.integers(0, 10**12), names)
def test_a_later_wish_is_larger_and_says_its_policy(before, name):
    after = next_wish(before, name)
    assert after > before
    assert wished(after) == name


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_starts_with_its_own(name):
    assert wished(first_wish(name)) == name
    assert all(first_wish(name) < next_wish(first_wish(name), each) for each in NAMES)


def test_there_is_one_for_every_policy_and_none_for_others():
    assert {*NAMES} == {"off", *POLICIES} == {*policy.NAMES}
    with pytest.raises(ValueError, match="not in tuple"):
        next_wish(0, "best")
