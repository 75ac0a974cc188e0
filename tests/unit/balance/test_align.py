"""The policy `align`: TensorRT-LLM's rule, in hand-made cases."""

from balance.policies.by_name import create_policy
from snapshots import running, snapshot

WORK, NONE, IDLE, IDLE_WORK = (
    running(3, pending=1),
    running(3),
    running(0),
    running(0, pending=1),
)


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


def test_waits_for_a_rank_that_has_nothing_until_the_timeout():
    found = decisions([[WORK, NONE]] * 7, timeout_steps=3)
    assert found == "hold hold timeout hold hold timeout hold"


def test_waits_a_little_more_once_every_rank_has_something():
    steps = [[WORK, NONE], [WORK, WORK], [WORK, WORK], [WORK, WORK], [WORK, WORK]]
    assert decisions(steps, batching_steps=2) == "hold hold hold aligned hold"


def test_without_batching_goes_as_soon_as_every_rank_has_something():
    steps = [[WORK, NONE], [WORK, WORK], [WORK, WORK]]
    assert decisions(steps, batching_steps=0) == "hold aligned aligned"


def test_the_timeout_starts_anew_when_every_rank_has_something():
    steps = [[WORK, NONE]] * 2 + [[WORK, WORK]] + [[WORK, NONE]] * 3
    found = decisions(steps, timeout_steps=3, batching_steps=5)
    assert found == "hold hold hold hold hold timeout"


def test_the_batching_wait_goes_on_after_an_interruption():
    steps = [[WORK, WORK], [WORK, NONE], [WORK, WORK], [WORK, WORK]]
    assert decisions(steps, batching_steps=2) == "hold hold hold aligned"


def test_a_rank_that_runs_nothing_ends_either_wait():
    assert decisions([[WORK, NONE], [WORK, IDLE]]) == "hold idle"
    assert decisions([[WORK, WORK], [WORK, IDLE_WORK]]) == "hold idle"


def test_a_rank_with_prompts_in_progress_alone_ends_either_wait():
    chunks = WORK._replace(decoding=0)
    assert decisions([[WORK, NONE], [chunks, NONE]]) == "hold idle"


def test_time_without_anything_pending_does_not_count():
    steps = [[NONE, NONE]] * 10 + [[WORK, NONE]] * 3
    assert decisions(steps, timeout_steps=3) == "hold " * 12 + "timeout"


def test_ranks_without_any_request_are_open():
    assert decisions([[IDLE, IDLE]]) == "open"


def test_an_arrival_cannot_slip_in_before_the_ranks_have_seen_it():
    assert decisions([[NONE, NONE]]) == "hold"


def test_the_end_of_a_wave_starts_both_waits_anew():
    policy = create_policy("align", {"timeout_steps": 2, "batching_steps": 1})
    for rows in ([WORK, NONE], [WORK, WORK]):
        policy.reset()
        assert not policy.decide(snapshot(rows)).admit
        policy.reset()
        assert not policy.decide(snapshot(rows)).admit
