"""Requests for another policy, as numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_balance import policy
from vllm_balance.core.policies import POLICIES
from vllm_balance.core.policies.switch_ticket import (
    NAMES,
    first_ticket,
    next_ticket,
    policy_of,
)

names = st.sampled_from(NAMES)


@given(st.integers(0, 10**12) | names.map(first_ticket), names)
def test_a_later_one_is_larger_and_says_its_policy(before, name):
    assert policy_of(first_ticket(name)) == name
    after = next_ticket(before, name)
    assert after > before
    assert policy_of(after) == name


def test_there_is_one_for_every_policy_and_none_for_others():
    assert {*NAMES} == {"off", *POLICIES} == {*policy.NAMES}
    with pytest.raises(ValueError, match="not in tuple"):
        next_ticket(0, "best")
