"""The policy `adaptive`: when it holds, when it releases, and how much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import IDLE, MAX_TOKENS, running, snapshot

from vllm_balance.core.policies.adaptive import (
    NO_LIMITS,
    Adaptive,
    Cheap,
    LatencyLimits,
    WaitAccount,
    _decodes_first,
    _slack,
    _wait,
)
from vllm_balance.core.policies.cost import StepCost
from vllm_balance.core.policies.decision import OPEN
from vllm_balance.core.policies.flow import Flow

DECODE = running(6)


def learned(ranks=4, rate=12):
    """A policy that knows 40 ms a step, 60 more for 100 tokens, and the rate."""
    policy = Adaptive()
    since, interval = 0.0, 1 / rate
    policy.decide(snapshot([DECODE] * ranks))
    for _ in range(800):
        prompt = since >= interval
        since += 0.1 - interval if prompt else 0.04
        timed = DECODE._replace(step_time_us=100_000 if prompt else 40_000)
        first = timed._replace(
            prefill_tokens=100 if prompt else 0,
            waiting=1,
            pending=1,
            pending_tokens=100,
        )
        policy.decide(snapshot([first] + [timed] * (ranks - 1)))
    policy.reset()
    return policy


def one_pending(age=0.0, ranks=4, **fields):
    """Six requests run on each rank; one of 100 tokens is pending on the first."""
    row = running(6, pending=1, pending_age_us=int(age * 1e6), **fields)
    return snapshot([row] + [DECODE] * (ranks - 1))


def first_decode(rows, prefills):
    """In which steps of 0.5 s one without prefill is wanted, while none is made."""
    policy = Adaptive()
    timed = [
        row._replace(prefill_tokens=prefills * (row.running > 0), step_time_us=500_000)
        for row in rows
    ]
    policy.decide(snapshot(rows))
    decisions = [policy.decide(snapshot(timed)) for _ in range(300)]
    assert all(each.prefill_budget == (None if each.admit else 0) for each in decisions)
    assert {each.reason for each in decisions} == {"learn"}
    assert policy.learned is None
    return [step for step, each in enumerate(decisions, 1) if not each.admit]


@pytest.mark.parametrize(
    ("rows", "prefills", "held"),
    [
        # It may be a slow one, which all that wait would meet, so that many decode.
        ([running(9, 9)] * 2, 100, [1, 2]),
        ([running(9, 10)] * 2, 100, [67, 134]),
        # Not while answers are short.
        ([running(3)] * 2, 100, [1, 2]),
        ([running(3, 1)] * 2, 100, [1, 2]),
        ([running(2)] * 2, 100, [90, 180]),
        ([running(8, 1)] * 2, 300, [68, 136]),
        # In an overload, prompts would never let one be.
        ([running(1)] * 2, 100, [180]),
        # A rank alone need not know what a decode takes.
        ([running(9), IDLE], 100, []),
    ],
)
def test_the_first_decode_step_is_made_once_enough_decode_or_late(rows, prefills, held):
    assert first_decode(rows, prefills)[:2] == held


def test_a_step_in_which_nobody_decodes_does_not_time_a_decode():
    policy = Adaptive()
    for _ in range(5):
        policy.decide(snapshot([IDLE] * 2))
    assert policy.learned is None
    for _ in range(2):
        policy.decide(snapshot([DECODE] * 2))
    assert policy.learned is not None


@pytest.mark.parametrize("idle", [0, 2])
def test_a_rank_that_never_gets_any_request_wastes_nothing(idle):
    """The prompts of the others are alike: nothing is worth waiting for."""
    policy = learned(ranks=2)
    rows = [running(6, pending=1, tokens=MAX_TOKENS)] * 2 + [IDLE] * idle
    decision = policy.decide(snapshot(rows))
    assert (decision.admit, decision.prefill_budget) == (True, MAX_TOKENS - 6)


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
    assert decision[:4] == (True, 100, "gain", 0.0)


def steps_held(rows):
    """Steps for which these rows, the same but for the age, are held."""
    policy = learned(rate=3)
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


PENDING = running(6, pending=1)
EMPTY = running(6, max_running=200)


@pytest.mark.parametrize(
    ("sooner", "later"),
    [
        ([PENDING] * 4, [PENDING, DECODE, DECODE, DECODE]),
        ([PENDING._replace(max_running=200), *[EMPTY] * 3], [PENDING, *[DECODE] * 3]),
        (
            [running(9, pending=1), *[running(5)] * 3],
            [running(3, pending=1), *[running(7)] * 3],
        ),
    ],
    ids=["requests on every rank", "empty ranks", "a fuller rank"],
)
def test_who_goes_sooner(sooner, later):
    assert steps_held(sooner) < steps_held(later)


def test_one_that_waits_alone_for_long_is_old_by_the_ages_of_many():
    """Else its own age is the usual one, and it is held until others come."""
    waits, seconds, waiting = WaitAccount(), 0.04, []
    for step in range(400):
        lone = step % 2
        age, count = (10.0, 1) if lone else (1.0, 9)
        rows = [running(6, pending=count, pending_age_us=int(age * 1e6))] * 4
        waits = _wait(waits._replace(waiting=()), snapshot(rows), seconds)
        waiting.append(waits.waiting[0] / seconds)
    assert sum(waiting[-20:]) == pytest.approx(10 * (9 + 1), rel=0.02)
    assert waiting[-1] > 5


@given(load=st.floats(0, 4), stretch=st.floats(1.01, 20))
def test_slack_costs_the_mean_what_it_may(load, stretch):
    """0.4 % of it with all slots in use, if all that prefills take goes with the cycle;
    the cycle goes with the root of what waiting weighs."""
    shorter = (1 + _slack(load, stretch)) ** 0.5
    lost = (stretch - 1) * ((shorter + 1 / shorter) / 2 - 1)
    assert lost == pytest.approx(0.004 / max(load, 0.07))


def test_the_longer_prefills_stretch_decodes_the_longer_are_holds(monkeypatch):
    rows = [running(8, pending=1), *[running(8)] * 3]
    held = []
    for stretch in (1.5, 3.0):
        monkeypatch.setattr(Flow, "stretch", stretch)
        held.append(steps_held(rows))
    assert held[0] < held[1]


@pytest.mark.parametrize(
    "rows",
    [[running(0, pending=1), DECODE, DECODE, DECODE], [PENDING, DECODE, DECODE, IDLE]],
)
def test_a_rank_that_runs_nothing_waits_for_the_others(rows):
    """Else every request that comes to an idle rank delays all decodes alone."""
    assert not learned().decide(snapshot(rows)).admit


def test_nothing_is_held_while_nobody_decodes():
    """But for the step in which clients may ask whose answers ended in the last."""
    policy = learned()
    rows = snapshot([running(1, pending=1, decoding=0), IDLE, IDLE])
    policy.decide(snapshot([DECODE, IDLE, IDLE]))
    assert policy.decide(rows).reason == "waiting_cost"
    assert policy.decide(rows) == OPEN._replace(reason="idle")


def about_to_end(monkeypatch, ending, queued):
    """Whether a due release of one request per rank, of 40, is held for decodes."""
    monkeypatch.setattr(Flow, "ending", ending)
    known = learned().state.known
    row = running(40, pending=1, max_running=41)
    rows = snapshot([row._replace(waiting=1 + queued)] * 4)
    return _decodes_first(known.flow, known.cost, [100] * 4, rows)


def test_a_release_waits_for_decodes_that_end_unless_many_are_queued(monkeypatch):
    assert about_to_end(monkeypatch, ending=0.1, queued=4)
    assert not about_to_end(monkeypatch, ending=0.001, queued=0)
    assert not about_to_end(monkeypatch, ending=0.1, queued=40)


@pytest.mark.parametrize(("ranks", "reason"), [(1, "gain"), (4, "decodes_first")])
def test_on_a_rank_alone_no_release_waits_for_decodes(monkeypatch, ranks, reason):
    monkeypatch.setattr(Flow, "ending", 0.1)
    policy = learned(ranks=ranks)
    rows = snapshot([running(40, pending=1, max_running=41)] * ranks)
    reasons = [policy.decide(rows).reason for _ in range(200)]
    assert next(name for name in reasons if name != "waiting_cost") == reason


@pytest.mark.parametrize(("ranks", "waited"), [(1, 3.0), (2, 1.0)])
def test_a_rank_alone_waits_for_its_queue_as_well(ranks, waited):
    """Its 24 requests are three times those that have a slot; new ones count half."""
    rows = [running(6, pending=2, waiting=18)] * ranks
    waits = _wait(WaitAccount(), snapshot(rows), seconds=1.0)
    assert waits.waiting == pytest.approx([waited] * ranks)


@pytest.mark.parametrize(
    ("queued", "closed", "limits", "reason"),
    [
        (0, False, NO_LIMITS, "cheap"),
        (0, True, NO_LIMITS, "waiting_cost"),
        (1, False, NO_LIMITS, "waiting_cost"),
        (0, False, LatencyLimits(9.0, 0.04), "waiting_cost"),
    ],
    ids=["goes at once", "a closed loop", "beside a queue", "decodes miss their limit"],
)
def test_a_cheap_prompt_goes_at_once_and_of_others_as_much_with_it(
    queued, closed, limits, reason, monkeypatch
):
    policy = learned()
    policy.limits = limits
    monkeypatch.setattr(Flow, "is_closed", closed)
    cheap = running(6, pending=1, tokens=20, waiting=1 + queued)
    rows = [cheap, running(6, pending=1), DECODE, DECODE]
    decision = policy.decide(snapshot(rows))
    assert decision.reason == reason
    assert decision.prefill_budget >= 20 * (reason == "cheap")


@pytest.mark.parametrize(
    ("ranks", "tokens", "reason"),
    [(1, MAX_TOKENS // 2, "waiting_cost"), (2, 5, "cheap")],
)
def test_a_rank_alone_releases_no_prompt_for_being_cheap(ranks, tokens, reason):
    """Which would be a long one there: it uses more of what leaving the graph costs."""
    policy = learned(ranks=ranks)
    known = policy.state.known._replace(cost=StepCost(0.04, 0.04, 0.5, 0.0))
    cheap = Cheap(usual=100.0, pending=(0,) * ranks, allowed=10.0)
    policy.state = policy.state._replace(known=known, cheap=cheap)
    row = DECODE._replace(step_time_us=0)  # nothing is learned from it
    one = running(6, pending=1, tokens=tokens, step_time_us=0)
    rows = [one, *[row] * (ranks - 1)]
    assert policy.decide(snapshot(rows)).reason == reason


def due_ages(limits):
    """Ages, in steps of 10 ms, at which a prompt of 100 tokens is released as due."""
    policy, ages = learned(), []
    policy.limits, state = limits, policy.state
    for age in range(0, 2400, 10):
        policy.state = state
        in_time = age if age < 1000 * limits.ttft else 0
        row = one_pending(in_time_age_us=1000 * in_time)
        if policy.decide(row).reason == "first_token":
            ages.append(age / 1000)
    return ages


def test_a_prompt_is_released_in_the_last_step_that_keeps_its_limit():
    """It takes 100 ms; a step later is after 40 ms, and perhaps another prefill."""
    ages = due_ages(LatencyLimits(2.0, 0.3))
    assert max(ages) == pytest.approx(1.9, abs=0.02)
    assert max(ages) - min(ages) == pytest.approx(0.04 + 0.06 / 3, abs=0.02)
    assert due_ages(LatencyLimits(1.0)) == pytest.approx([age - 1 for age in ages])


def test_no_first_token_is_due_without_a_limit_or_while_decodes_miss_theirs():
    assert due_ages(NO_LIMITS) == []
    assert due_ages(LatencyLimits(2.0, 0.04)) == []


def test_cheap_prompts_take_their_share_of_everybodys_time_and_no_more():
    """Of 20 tokens on one rank, where a usual one has 100; 25 requests lose by it."""
    policy, went = learned(), []
    cost, stretch = policy.learned.cost, policy.state.known.flow.stretch
    for step in range(8000):
        tokens = (0, 20, 0, 180)[step % 4]
        rows = [running(6, pending=tokens > 0, tokens=tokens), DECODE, DECODE, DECODE]
        went.append(policy.decide(snapshot(rows)).reason == "cheap")
    kept = 20 * 25 * stretch * cost.alone(100 / MAX_TOKENS, 4)
    given = 0.15 * 25 * 0.04 * len(went) + kept
    assert 100 < sum(went[1::4]) < 1900
    assert sum(went[3::4]) == 0
    assert sum(went) * 25 * cost.alone(20 / MAX_TOKENS, 4) < given


def test_an_arrival_cannot_slip_in_before_the_ranks_have_seen_it():
    decision = learned().decide(snapshot([DECODE] * 4))
    assert decision[:3] == (False, 0, "waiting_cost")


def test_a_released_rank_pays_its_rent():
    policy = learned()
    while not policy.decide(one_pending(age=0.04)).admit:
        pass
    assert not policy.decide(one_pending(age=0.04)).admit


def test_the_end_of_a_wave_clears_the_rent_but_not_the_costs():
    policy, other = learned(), learned()
    for _ in range(5):
        policy.decide(one_pending())
    policy.reset()
    for _ in range(50):
        rows = one_pending()
        assert policy.decide(rows) == other.decide(rows)


def test_the_first_step_of_a_wave_teaches_nothing_and_what_comes_before_it_waits():
    """That step has no step time, and nothing has waited yet."""
    policy = learned()
    cost = policy.learned.cost
    rows = [running(6, pending=1), DECODE] * 2
    rows = [row._replace(step_time_us=0, prefill_tokens=50) for row in rows]
    assert policy.decide(snapshot(rows)).reason == "waiting_cost"
    assert policy.learned.cost == cost


def test_prompts_longer_than_a_step_are_served_in_chunks():
    policy = learned()
    long = running(6, pending=2, tokens=5 * MAX_TOKENS, pending_age_us=10**9)
    rows = snapshot([long] * 4)
    decisions = iter(lambda: policy.decide(rows), None)
    released = next(decision for decision in decisions if decision.admit)
    assert released.prefill_budget == MAX_TOKENS - 6, "room for the decodes"
