"""What must hold for every policy, whatever the rows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import MAX_TOKENS, Ranks, histories, running, snapshot

from vllm_balance.core.policies import POLICIES, create_policy

names = pytest.mark.parametrize("name", sorted(POLICIES))

arrivals = st.lists(
    st.tuples(
        st.integers(0, 60), st.integers(0, 3), st.integers(1, 900), st.integers(1, 90)
    ),
    max_size=40,
)


@names
@settings(max_examples=40)
@given(history=histories(), data=st.data())
def test_the_order_of_the_ranks_does_not_matter(name, history, data):
    order = data.draw(st.permutations(range(len(history[0]))))
    straight, permuted = create_policy(name), create_policy(name)
    for rows in history:
        decision = straight.decide(snapshot(rows))
        assert permuted.decide(snapshot([rows[i] for i in order])) == decision


@names
@settings(max_examples=40)
@given(history=histories())
def test_ranks_that_run_nothing_are_not_held(name, history):
    policy = create_policy(name)
    for rows in history:
        policy.decide(snapshot(rows))
    idle = [running(0, pending=3), running(0)]
    for step in (98, 99):  # in the first, clients may ask again
        rows = snapshot([row._replace(step=step) for row in idle])
        decision = policy.decide(rows)
    assert decision.admit
    assert decision.prefill_budget is None


@names
@settings(max_examples=40)
@given(arrivals=arrivals)
def test_served_by_a_policy_everything_ends(name, arrivals):
    policy = create_policy(name)
    ranks = Ranks(4)
    arrivals = sorted(arrivals)
    for _ in range(10_000):
        while arrivals and arrivals[0][0] <= ranks.step:
            ranks.arrive(*arrivals.pop(0)[1:])
        if not arrivals and not ranks.unfinished():
            break
        ranks.advance(policy.decide(ranks.snapshot()))
    assert not ranks.unfinished()


@names
def test_prompts_in_progress_on_one_rank_do_not_hold_themselves(name):
    """Each prompt takes three steps, so that some rank has always work left over."""
    policy, ranks = create_policy(name), Ranks(4)
    for rank in range(4):
        ranks.arrive(rank, 100, 5000)
    longest = 0
    for number in range(3000):
        if number % 400 == 0:
            ranks.arrive(0, 3 * MAX_TOKENS, 10)
        ranks.advance(policy.decide(ranks.snapshot()))
        longest = max(longest, *ranks.held)
    assert sum(map(len, ranks.waiting)) <= 1
    assert longest < 200


@names
@settings(max_examples=40)
@given(history=histories(), ranks=st.integers(1, 8))
def test_the_number_of_ranks_may_change(name, history, ranks):
    policy = create_policy(name)
    for rows in history:
        policy.decide(snapshot(rows))
    policy.reset()
    policy.decide(snapshot([running(2, pending=1)] * ranks))


@pytest.mark.parametrize(
    ("name", "parameter", "value", "says"),
    [
        *((name, "speed", 1, "") for name in POLICIES),
        ("cap", "margin", -1, "must be"),
        ("align", "timeout_steps", 0, "must be"),
        ("align", "batching_steps", -1, "must be"),
        ("cap", "timeout_steps", 0, "must be"),
    ],
)
def test_what_is_no_parameter_or_out_of_range_is_refused(name, parameter, value, says):
    with pytest.raises((TypeError, ValueError), match=f"{parameter}'? ?{says}"):
        create_policy(name, {parameter: value})
