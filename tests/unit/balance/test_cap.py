"""The policy `cap`: the rule of the vllm-ascend balance scheduler."""

from hypothesis import given
from hypothesis import strategies as st
from snapshots import IDLE, snapshot

from vllm_balance.core.policies import OPEN, create_policy
from vllm_balance.core.policies.simple import Cap


def freezes(counts, limit, margin):
    """The published rule: margin 0 is its first form, margin 1 its later one."""
    return max(counts) == limit if margin == 0 else max(counts) >= limit - margin


@given(
    limit=st.integers(1, 256),
    shares=st.lists(st.integers(0, 256), min_size=1, max_size=32),
    margin=st.sampled_from([0, 1, 2]),
)
def test_decides_like_the_rule_it_replaces(limit, shares, margin):
    counts = [min(count, limit) for count in shares]
    row = IDLE._replace(max_running=limit)
    rows = snapshot(row._replace(running=count) for count in counts)
    decision = Cap(margin).decide(rows)
    assert decision.admit is not freezes(counts, limit, margin)
    assert decision.prefill_budget is None, "prompts in progress go on"


def test_each_rank_is_measured_by_its_own_limit():
    policy = create_policy("cap")
    small = IDLE._replace(running=3, max_running=3)
    large = IDLE._replace(running=3, max_running=9)
    assert policy.decide(snapshot([large, large])) == OPEN
    assert not policy.decide(snapshot([large, small])).admit


def test_a_rank_that_stays_full_holds_the_others_for_no_longer_than_the_time_out():
    policy = create_policy("cap", {"timeout_steps": 3})
    rows = snapshot([IDLE._replace(running=IDLE.max_running), IDLE])
    reasons = [policy.decide(rows).reason for _ in range(8)]
    assert reasons == [*["rank_full"] * 3, "timeout"] * 2
