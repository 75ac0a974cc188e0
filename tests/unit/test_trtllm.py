"""The model of TensorRT-LLM's balance, on hand-made states."""

import pytest
from vllm.benchmarks.dp_balance.rivals import HOLD
from vllm.benchmarks.dp_balance.rivals.trtllm import AttentionDpBalance
from vllm.v1.core.sched.balance.policies.attention_cost import tokens_within
from vllm.v1.core.sched.balance.policies.registry import OPEN, create_policy

from test_dp_balance_simulation import snapshot


def state(decoding, pending, slots=4):
    """Ranks on which so many requests decode, and so many wait that could start."""
    limits = (slots,) * len(decoding)
    columns = {"decoding": decoding, "running": decoding, "pending": pending}
    return snapshot(**columns, waiting=pending, max_running=limits)


SOME = state((2, 2), (1, 0))
ALL = state((2, 2), (1, 2))
NOTHING_PENDING = state((2, 2), (0, 0))


@pytest.mark.parametrize(
    ("timeout", "batching", "states", "opens"),
    [
        (3, 0, [SOME] * 4, 2),
        (50, 2, [ALL] * 4, 2),
        # Prompts on all ranks start the timeout anew, but not the batching.
        (2, 2, [SOME, ALL, SOME, ALL, ALL], 4),
        (3, 0, [NOTHING_PENDING, NOTHING_PENDING, SOME], 2),
        # A full batch of decodes waits as if it had no prompt.
        (2, 0, [state((4, 2), (1, 1))] * 2, 1),
    ],
)
def test_it_waits_for_a_prompt_on_every_rank_and_then_for_more(
    timeout, batching, states, opens
):
    rule = AttentionDpBalance(timeout_iters=timeout, batching_wait_iters=batching)
    decisions = [rule.decide(each) for each in states]
    assert decisions == [[HOLD, OPEN][n == opens] for n in range(len(states))]


def test_a_rank_that_only_has_prompts_ends_both_waits():
    rule = AttentionDpBalance()
    assert rule.decide(state((2, 0), (1, 1))) == OPEN
    assert rule.decide(state((2, 0, 2), (0, 1, 0))) == OPEN


def test_a_rank_without_requests_counts_as_decoding():
    idle = state((2, 0), (1, 0))
    assert AttentionDpBalance(timeout_iters=9).decide(idle) == HOLD
    assert create_policy("align").decide(idle).admit, "align differs here"


def test_chunks_of_equal_cost_are_smaller_the_deeper_they_are():
    chunks = {"kv_cost_offset": 10_000, "kv_depth_threshold": 20_000}
    rule = AttentionDpBalance(timeout_iters=2, batching_wait_iters=0, **chunks)
    some = SOME._replace(max_tokens=(8192, 8192))
    hold, decision = rule.decide(some), rule.decide(some)
    assert hold == HOLD
    assert decision.prefill_budget is not None
    assert [
        tokens_within(
            decision.prefill_budget, position, 8192, decision.cost_per_attended
        )
        for position in (0, 20_000, 50_000, 110_000)
    ] == [8192, 8192, 4487, 2305]
