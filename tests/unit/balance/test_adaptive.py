"""The policy `adaptive`: when it holds, when it releases, and how much."""

import pytest
from balance.adaptive import Adaptive, AdaptiveParameters
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import IDLE, MAX_TOKENS, Ranks, running, snapshot

DECODE = running(6)


def learned(ranks=4, rate=12, **parameters):
    """A policy that knows: 40 ms per step, 60 ms more with one prompt of 100 tokens,
    and so many of them per second."""
    policy = Adaptive(AdaptiveParameters(**parameters))
    since, interval = 0.0, 1 / rate
    for _ in range(800):
        prompt = since >= interval
        since += 0.1 - interval if prompt else 0.04
        timed = DECODE._replace(step_time_us=100_000 if prompt else 40_000)
        first = timed._replace(
            prefill_tokens=100 if prompt else 0,
            waiting=1,
            pending=1,
            pending_tokens=100,
            wait_us=1,
        )
        policy.decide(snapshot([first] + [timed] * (ranks - 1)))
    policy.reset()
    return policy


def one_pending(age=0.0, wait=0.0, ranks=4, **fields):
    """Six requests run on each rank; one of 100 tokens is pending on the first."""
    row = running(
        6, pending=1, pending_age_us=int(age * 1e6), wait_us=int(wait * 1e6), **fields
    )
    return snapshot([row] + [DECODE] * (ranks - 1))


def test_the_first_decision_needs_a_decode_step_to_be_timed():
    policy = Adaptive(AdaptiveParameters())
    first = running(0, pending=2, step_time_us=0)
    start = snapshot([first, IDLE._replace(step_time_us=0)])
    assert policy.decide(start).reason == "idle"
    some_decode = snapshot([running(3, pending=2, prefill_tokens=9), DECODE])
    assert policy.decide(some_decode) == (False, 0, "learn")
    few_decodes = snapshot([running(1, pending=1, prefill_tokens=9)] * 2)
    assert policy.decide(few_decodes) == (True, None, "learn")


def test_a_lone_request_is_held_at_first_and_released_in_the_end():
    policy = learned()
    reasons = []
    for step in range(200):
        decision = policy.decide(one_pending(age=step * 0.040))
        reasons.append(decision.reason)
        if decision.admit:
            break
    assert len(reasons) > 3
    assert set(reasons[:-1]) == {"waiting_cost"}
    assert decision == (True, 100, "gain")


def steps_held(rows):
    """Steps for which these rows, the same but for the age, are held."""
    policy = learned()
    return next(
        step
        for step in range(500)
        if policy.decide(
            snapshot(
                row._replace(pending_age_us=step * 40_000 if row.pending else 0)
                for row in rows
            )
        ).admit
    )


def test_requests_on_every_rank_go_sooner_than_on_one():
    alone = running(6, pending=1)
    assert steps_held([alone] * 4) < steps_held([alone, DECODE, DECODE, DECODE])


def test_a_rank_with_more_requests_is_served_sooner():
    others = [running(2), running(2), running(2)]
    assert steps_held([running(7, pending=1), *others]) < steps_held(
        [running(2, pending=1), running(7), running(2), running(2)]
    )


def test_releases_of_many_requests_are_collected_for_longer(monkeypatch):
    rows = [running(150, pending=1), *[running(150)] * 3]
    longer = steps_held(rows)
    monkeypatch.setattr(
        "balance.adaptive.fuller_release",
        lambda cycle, waste, fullness: (cycle, waste),
    )
    assert steps_held(rows) < longer


def test_on_empty_ranks_waits_are_shorter():
    policy = learned()
    rows = one_pending()
    assert policy._tolerance(rows, load=0.0) == 2 * policy._tolerance(rows, load=1.0)


def test_where_requests_queue_for_slots_no_throughput_is_given_away():
    policy = learned()
    some = one_pending(waiting=4)
    assert policy._tolerance(some, load=1.0) == pytest.approx(0.03 / 4)
    none = snapshot([running(8, waiting=9), DECODE])
    assert policy._tolerance(none, load=1.0) == 0


def test_a_rank_that_runs_nothing_is_served_at_once():
    policy = learned()
    rows = [running(0, pending=1), DECODE, DECODE, DECODE]
    assert policy.decide(snapshot(rows)) == (True, None, "idle")


def test_a_rank_with_prompts_in_progress_alone_is_served_at_once():
    policy = learned()
    rows = [running(1, pending=1, decoding=0), DECODE, DECODE, DECODE]
    assert policy.decide(snapshot(rows)) == (True, None, "idle")


def test_a_rank_that_has_nothing_at_all_changes_nothing():
    policy = learned()
    rows = [running(6, pending=1), DECODE, DECODE, IDLE]
    assert not policy.decide(snapshot(rows)).admit


def test_traffic_too_thin_to_collect_is_not_held():
    policy = learned(rate=0.2)
    assert policy.decide(one_pending()) == (True, None, "alone")
    nothing_pending = snapshot([DECODE] * 4)
    assert policy.decide(nothing_pending) == (True, None, "alone")


def test_an_arrival_cannot_slip_in_before_the_ranks_have_seen_it():
    assert learned().decide(snapshot([DECODE] * 4)) == (False, 0, "waiting_cost")


def test_work_pending_too_long_is_served_whole():
    policy = learned()
    policy.decide(one_pending(age=0.0))
    decision = policy.decide(one_pending(age=1000.0))
    assert decision == (True, 100, "deadline")


def of_one_decision(monkeypatch, slots):
    """The fullness and the deadline that a decision uses; a rank has seven requests."""
    seen = {}

    def fuller_release(cycle, waste, fullness):
        seen["fullness"] = fullness
        return cycle, waste

    def overdue(snapshot, limit, deadline):
        seen["deadline"] = deadline
        return 0

    policy = learned()
    monkeypatch.setattr("balance.adaptive.fuller_release", fuller_release)
    monkeypatch.setattr(
        "balance.adaptive.shortened_cycle", lambda cycle, waste, tolerance: cycle
    )
    monkeypatch.setattr(Adaptive, "_overdue", staticmethod(overdue))
    rows = [running(6, pending=1), DECODE, DECODE, DECODE]
    policy.decide(snapshot(row._replace(max_running=slots) for row in rows))
    return seen


def test_the_fewer_slots_are_in_use_the_sooner_is_the_deadline_down_to_a_quarter(
    monkeypatch,
):
    half, quarter, few = (
        of_one_decision(monkeypatch, slots)["deadline"] for slots in (14, 28, 700)
    )
    assert half == pytest.approx(2 * quarter)
    assert few == pytest.approx(quarter)


def test_the_fewer_slots_are_in_use_the_less_full_releases_count(monkeypatch):
    half, few = (of_one_decision(monkeypatch, slots)["fullness"] for slots in (14, 700))
    assert half == pytest.approx(50 * few)


def test_a_released_rank_pays_its_rent():
    policy = learned()
    while not policy.decide(one_pending(age=0.5)).admit:
        pass
    assert not policy.decide(one_pending(age=0.5)).admit


def test_the_end_of_a_wave_clears_the_rent_but_not_the_costs():
    policy, other = learned(), learned()
    for _ in range(5):
        policy.decide(one_pending(age=0.1))
    policy.reset()
    for _ in range(50):
        rows = one_pending(age=0.1)
        assert policy.decide(rows) == other.decide(rows)


def test_the_first_step_of_a_wave_teaches_nothing():
    policy = learned()
    cost = policy._learner.cost
    policy.decide(snapshot([DECODE._replace(step_time_us=0, prefill_tokens=50)] * 4))
    assert policy._learner.cost == cost


def test_a_request_that_would_miss_its_budget_is_not_held():
    rows = one_pending(wait=1.0)
    assert not learned().decide(rows).admit
    assert not learned(ttft_budget=9.0).decide(rows).admit
    assert learned(ttft_budget=1.1).decide(rows) == (True, None, "ttft_budget")


def test_the_budget_counts_the_time_that_the_prefill_itself_takes():
    many = [running(2, pending=6, tokens=500, wait_us=1)] + [DECODE] * 3
    assert not learned(ttft_budget=9.0).decide(snapshot(many)).admit
    assert learned(ttft_budget=1.0).decide(snapshot(many)).reason == "ttft_budget"


def test_a_budget_that_is_missed_already_is_no_reason():
    """The gate reports no wait for such requests."""
    assert not learned(ttft_budget=0.2).decide(one_pending(wait=0.0)).admit


@settings(max_examples=30)
@given(
    gaps=st.lists(st.integers(1, 40), min_size=5, max_size=40),
    budget=st.floats(1.0, 5.0),
)
def test_at_light_load_the_budget_is_kept(gaps, budget):
    """One prompt of 100 tokens at a time takes 100 ms, plus a step until it is seen."""
    policy = learned(ttft_budget=budget)
    ranks, due = Ranks(4), 0
    for number, gap in enumerate(gaps):
        due += gap
        while ranks.step < due:
            ranks.advance(policy.decide(ranks.snapshot()))
            assert all(ranks.now - t <= budget for q in ranks.waiting for _, _, t in q)
        ranks.arrive(number % 4, prompt=100, output=30)


@pytest.mark.parametrize("rate", [3, 12, 30])
def test_prompts_longer_than_a_step_are_served_in_chunks(rate):
    policy = learned(rate=rate)
    long = running(6, pending=2, tokens=5 * MAX_TOKENS, pending_age_us=10**9)
    decision = policy.decide(snapshot([long, DECODE, DECODE, DECODE]))
    assert decision.prefill_budget == MAX_TOKENS - 6, "room for the decodes"
