"""The policy `align`: TensorRT-LLM's rule, in hand-made cases."""

import pytest
from snapshots import running, snapshot

from vllm_balance.core.policies import create_policy

WORK, NONE = running(3, pending=1), running(3)
IDLE, IDLE_WORK = running(0), running(0, pending=1)


def decisions(steps, **parameters):
    """Reasons of the releases, and "hold", for rows of each step; in one string."""
    policy = create_policy("align", parameters)
    result = []
    for rows in steps:
        decision = policy.decide(snapshot(rows))
        assert decision.prefill_budget in (0, None)
        assert decision.admit is (decision.prefill_budget is None)
        result.append(decision.reason if decision.admit else "hold")
    return " ".join(result)


SOME, ALL = [WORK, NONE], [WORK, WORK]


@pytest.mark.parametrize(
    ("steps", "timeout", "batching", "expected"),
    [
        ([SOME] * 7, 3, 10, "hold hold timeout hold hold timeout hold"),
        ([SOME, *[ALL] * 4], 50, 2, "hold hold hold aligned hold"),
        ([SOME, ALL, ALL], 50, 0, "hold aligned aligned"),
        # The timeout starts anew with prompts on all ranks; the batching goes on.
        ([SOME, SOME, ALL, *[SOME] * 3], 3, 5, "hold hold hold hold hold timeout"),
        ([ALL, SOME, ALL, ALL], 50, 2, "hold hold hold aligned"),
        ([[NONE, NONE]] * 10 + [SOME] * 3, 3, 10, "hold " * 12 + "timeout"),
        ([[IDLE, IDLE]], 50, 10, "open"),
        # An arrival cannot slip in before the ranks have seen it.
        ([[NONE, NONE]], 50, 10, "hold"),
        # A rank that runs nothing, or prompts in progress alone, ends either wait.
        ([SOME, [WORK, IDLE]], 50, 10, "hold idle"),
        ([ALL, [WORK, IDLE_WORK]], 50, 10, "hold idle"),
        ([SOME, [WORK._replace(decoding=0), NONE]], 50, 10, "hold idle"),
    ],
)
def test_waits_for_a_prompt_on_every_rank_and_then_for_more(
    steps, timeout, batching, expected
):
    found = decisions(steps, timeout_steps=timeout, batching_steps=batching)
    assert found == expected


def test_the_end_of_a_wave_starts_both_waits_anew():
    policy = create_policy("align", {"timeout_steps": 2, "batching_steps": 1})
    for rows in (SOME, ALL):
        policy.reset()
        assert not policy.decide(snapshot(rows)).admit
        policy.reset()
        assert not policy.decide(snapshot(rows)).admit
